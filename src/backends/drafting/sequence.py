"""How far a draft model is with each request, and what it computes of it in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...core.plan import Grant
from ..state.request_state import RequestState

MOST_USUAL_TOKENS = 2
"""What a draft model lacks as a rule: the token just sampled, and its own last draft if that was
accepted. More is to catch up."""


@dataclass(slots=True)
class DraftProgress:
    """What of a request is in the draft model's KV."""

    num_computed: int
    """Known tokens, from the first on."""
    num_marked: int = 0
    """Of these, the ones that DraftValidity knows of."""
    ahead: list[int] = field(default_factory=list)
    """Tokens after these, drafts when they were computed."""

    def catch_up_with(self, token_ids: Sequence[int]) -> None:
        """Count what became known of the tokens ahead; forget those that did not."""
        end = self.num_computed
        for token_id in self.ahead:
            if end == len(token_ids) or token_ids[end] != token_id:
                break
            end += 1
        # For its logits the last known token is computed in any case.
        self.num_computed = min(end, len(token_ids) - 1)
        self.ahead = []

    def keep_slots(self, num_slots: int) -> None:
        """What lies beyond so many slots is lost."""
        self.num_computed = min(self.num_computed, num_slots)
        self.num_marked = min(self.num_marked, num_slots)
        del self.ahead[num_slots - self.num_computed :]


@dataclass(slots=True, kw_only=True)
class DraftSequence:
    """One request within a call; an InputSequence of input_batch.py."""

    place: int
    """In the batch."""
    state: RequestState
    progress: DraftProgress
    num_drafts: int
    """How many to make."""
    num_tokens: int = 0
    """To compute in the first pass."""

    @property
    def num_known(self) -> int:
        return len(self.state.token_ids)

    @property
    def num_missing(self) -> int:
        return self.num_known - self.progress.num_computed

    @property
    def block_table(self) -> npt.NDArray[np.int32]:
        return self.state.block_table

    def input_token_ids(self, grant: Grant) -> Sequence[int]:
        """Known tokens; past them a place for each token that is on the device only."""
        end = grant.start + grant.num_tokens
        return self.state.token_ids[grant.start : end] or (0,) * grant.num_tokens

    def known_grant(self) -> Grant:
        """The first pass."""
        return self._grant(self.progress.num_computed, self.num_tokens)

    def draft_grant(self, index: int) -> Grant:
        """The pass that computes draft number `index`."""
        return self._grant(self.num_known + index, 1)

    def _grant(self, start: int, num_tokens: int) -> Grant:
        return Grant(
            request_id=self.state.start.request_id,
            start=start,
            num_tokens=num_tokens,
            new_block_ids=(),
            samples=start + num_tokens >= self.num_known,
        )


def share_budget(sequences: Iterable[DraftSequence], budget: int) -> list[DraftSequence]:
    """Who computes how much in the first pass: `budget` tokens are there to catch up, over all.
    Decodes come first, as in every step; who gets nothing is left out."""
    shared = []
    for one in sequences:
        extra = max(one.num_missing - MOST_USUAL_TOKENS, 0)
        one.num_tokens = one.num_missing if extra <= budget else budget
        budget -= min(extra, budget)
        if one.num_tokens:
            shared.append(one)
    return sorted(shared, key=lambda one: one.num_tokens != 1)
