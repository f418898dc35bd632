"""A draft model's progress with each request, and the tokens it computes in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...core.plan import Grant
from ..state.request_state import RequestState

MOST_USUAL_TOKENS = 2
"""Known tokens that a draft model usually has to compute: the token just sampled, and its own last
draft if that was accepted. Tokens beyond that are limited by the plan's draft token budget."""


@dataclass(slots=True)
class DraftProgress:
    """The tokens of a request in the draft model's KV cache."""

    num_computed: int
    """Number of known tokens, from the first on."""
    num_marked: int = 0
    """Number of them that are recorded in DraftValidity."""
    ahead: list[int] = field(default_factory=list)
    """Tokens computed after these, which were drafts at that time."""

    def catch_up_with(self, token_ids: Sequence[int]) -> None:
        """Count tokens ahead that are known by now, and drop the others."""
        end = self.num_computed
        for token_id in self.ahead:
            if end == len(token_ids) or token_ids[end] != token_id:
                break
            end += 1
        # The last known token is always computed: its logits are needed.
        self.num_computed = min(end, len(token_ids) - 1)
        self.ahead = []

    def keep_slots(self, num_slots: int) -> None:
        """Drop the tokens beyond the first `num_slots` slots."""
        self.num_computed = min(self.num_computed, num_slots)
        self.num_marked = min(self.num_marked, num_slots)
        del self.ahead[num_slots - self.num_computed :]


@dataclass(slots=True, kw_only=True)
class DraftSequence:
    """One request within a call. Implements InputSequence of input_batch.py."""

    place: int
    """Index in the batch."""
    state: RequestState
    progress: DraftProgress
    num_drafts: int
    """Number of draft tokens to make."""
    num_tokens: int = 0
    """Number of tokens to compute in the first pass."""

    @property
    def num_known(self) -> int:
        return len(self.state.token_ids)

    @property
    def num_missing(self) -> int:
        return self.num_known - self.progress.num_computed

    @property
    def block_tables(self) -> Sequence[npt.NDArray[np.int32]]:
        return self.state.block_tables

    @property
    def block_table(self) -> npt.NDArray[np.int32]:
        """The only block table: a draft model's KV is in the blocks of all layers."""
        (table,) = self.state.block_tables
        return table

    def input_token_ids(self, grant: Grant) -> Sequence[int]:
        """The grant's known tokens; 0 as a placeholder for a draft, which is on the device only."""
        end = grant.start + grant.num_tokens
        return self.state.token_ids[grant.start : end] or (0,) * grant.num_tokens

    def known_grant(self) -> Grant:
        return self._grant(self.progress.num_computed, self.num_tokens)

    def draft_grant(self, index: int) -> Grant:
        """The grant of the pass that computes draft number `index`."""
        return self._grant(self.num_known + index, 1)

    def _grant(self, start: int, num_tokens: int) -> Grant:
        return Grant(
            engine_id=self.state.start.engine_id,
            start=start,
            num_tokens=num_tokens,
            new_block_ids=(),
            samples=start + num_tokens >= self.num_known,
        )


def share_budget(sequences: Iterable[DraftSequence], budget: int) -> list[DraftSequence]:
    """Set the number of tokens that each sequence computes in the first pass.

    `budget` limits the sum of the tokens beyond MOST_USUAL_TOKENS of each sequence. Returns the
    sequences that compute any, single tokens first, as in every step.
    """
    shared = []
    for one in sequences:
        extra = max(one.num_missing - MOST_USUAL_TOKENS, 0)
        one.num_tokens = one.num_missing if extra <= budget else budget
        budget -= min(extra, budget)
        if one.num_tokens:
            shared.append(one)
    return sorted(shared, key=lambda one: one.num_tokens != 1)
