"""The state of one request that the runner keeps between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...core.plan import Grant, RequestStart
from ...core.requests.read_only_collections import ReadOnlyList
from ...core.requests.sampling_params import SamplingParams
from ..grammar.base import Matcher
from .token_counts import TokenCounts


class RequestState:
    """A request's tokens, drafts, block tables and sampling parameters."""

    __slots__ = (
        "draft_probs_kv",
        "draft_token_ids",
        "matcher",
        "num_computed_tokens",
        "processor_states",
        "start",
        "tables",
        "token_counts",
        "token_ids",
    )

    def __init__(
        self,
        start: RequestStart,
        num_computed_tokens: int,
        vocab_size: int,
        matcher: Matcher | None = None,
        *,
        num_groups: int = 1,
    ) -> None:
        """`matcher` has followed the tokens that were generated before. None: no grammar.
        `num_groups`: number of groups of layers, see KVGroups.

        Raises ValueError for a token id outside of the model's vocabulary.
        """
        # On a GPU such an id would end the whole process, not only this request.
        params = start.sampling_params
        _check_ids(start.token_ids, vocab_size, start.engine_id)
        for ids in (params.logit_bias, params.allowed_token_ids, params.logprob_token_ids):
            _check_ids(tuple(ids or ()), vocab_size, start.engine_id)
        for ids in start.bad_word_ids:
            _check_ids(ids, vocab_size, start.engine_id)
        self.start = start
        self.token_ids = ReadOnlyList(start.token_ids)
        """Known tokens, without drafts. Speculators read this list; only `settle` appends to it."""
        self.num_computed_tokens = num_computed_tokens
        """Tokens in the KV cache. Within a step it includes the tokens and drafts of that step."""
        self.draft_token_ids: Sequence[int] = ()
        """Between steps the proposed drafts; within a step those that the step verifies."""
        self.draft_probs_kv: torch.Tensor | None = None
        """The distributions that the drafts were drawn from, see DraftProbs. None if the drafts are
        not random."""
        self.matcher = matcher
        """None for a request without a grammar."""
        self.token_counts = _count_tokens(start) if is_penalized(params) else None
        """None for a request without penalties."""
        self.processor_states: dict[str, Any] = {}
        """By name of a logits processor: what it keeps of the request."""
        self.tables = [BlockTable() for _ in range(num_groups)]
        """Its block table in each group of layers."""

    @property
    def block_tables(self) -> Sequence[npt.NDArray[np.int32]]:
        """Per group of layers, the block ids; see BlockTable."""
        return [table.block_ids for table in self.tables]

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.start.num_prompt_tokens

    @property
    def rejects_drafts(self) -> bool:
        """Whether drafts are accepted at random, given the distributions they were drawn from."""
        params = self.start.sampling_params
        return self.draft_probs_kv is not None and not params.is_greedy and params.seed is None

    def advance(self, grant: Grant, block_size: int, num_blocks: int) -> None:
        """Apply a grant: its tokens count as computed, and drafts beyond it are dropped."""
        assert grant.start == self.num_computed_tokens, "a plan computes tokens in order"
        end = grant.start + grant.num_tokens
        self._take_drafts(grant.num_draft_tokens)
        known, num_drafts = len(self.token_ids), len(self.draft_token_ids)
        assert num_drafts == grant.num_draft_tokens, "a plan computes drafts that were proposed"
        assert grant.start < end - num_drafts <= known, "a plan computes tokens that are known"
        assert not grant.samples or end - num_drafts == known, (
            "a plan samples after the last known token"
        )
        assert grant.samples or not num_drafts, "a plan verifies all drafts that it computes"
        if grant.new_block_ids or grant.num_passed_blocks:
            self._change_tables(grant, num_blocks)
        num_slots = min(map(len, self.tables)) * block_size
        assert end + grant.num_lookahead_tokens <= num_slots, (
            "a plan brings the blocks that it fills"
        )
        self.num_computed_tokens = end

    def input_token_ids(self, grant: Grant) -> Sequence[int]:
        """The tokens that this grant computes, drafts at the end."""
        token_ids = self.token_ids[grant.start : grant.start + grant.num_tokens]
        return [*token_ids, *self.draft_token_ids] if self.draft_token_ids else token_ids

    def scored_token_ids(self, grant: Grant) -> Sequence[int]:
        """The prompt tokens that this grant scores."""
        start = grant.scored_start + 1
        return self.token_ids[start : start + grant.num_scored_tokens]

    def settle(self, token_ids: Sequence[int]) -> None:
        """Append a step's output: the accepted drafts and one more token. Rejected drafts no longer
        count as computed."""
        if self.draft_token_ids:
            self.num_computed_tokens -= len(self.draft_token_ids) - (len(token_ids) - 1)
            self.drop_drafts()
        list.extend(self.token_ids, token_ids)
        if self.matcher is not None:
            self.matcher.accept(token_ids)
        if self.token_counts is not None:
            for token_id in token_ids:
                self.token_counts.add(token_id)

    def propose(self, token_ids: Sequence[int], probs_kv: torch.Tensor | None) -> None:
        """Keep drafts for the next plan. A grammar cuts them at the first token that it forbids:
        the core learns their number afterwards."""
        self.draft_token_ids = tuple(token_ids)
        self.draft_probs_kv = probs_kv
        if self.matcher is not None:
            self._take_drafts(self.matcher.count_allowed(token_ids))

    def drop_drafts(self) -> None:
        """Drop all drafts. A grant without draft tokens does the same."""
        self.draft_token_ids = ()
        self.draft_probs_kv = None

    def give_back(self, block_size: int) -> None:
        """Shorten the block tables to the blocks that known tokens and proposed drafts need."""
        num_tokens = len(self.token_ids) + len(self.draft_token_ids)
        for table in self.tables:
            table.shorten(-(-num_tokens // block_size))

    def _take_drafts(self, num_tokens: int) -> None:
        if not num_tokens:
            self.drop_drafts()
        elif num_tokens < len(self.draft_token_ids):
            self.draft_token_ids = self.draft_token_ids[:num_tokens]
            if self.draft_probs_kv is not None:
                self.draft_probs_kv = self.draft_probs_kv[:num_tokens]

    def _change_tables(self, grant: Grant, num_blocks: int) -> None:
        """Append a grant's blocks to the tables, and pass those that it names."""
        none = ((),) * len(self.tables)
        passed = grant.num_passed_blocks or (0,) * len(self.tables)
        for table, block_ids, num_passed in zip(
            self.tables, grant.new_block_ids or none, passed, strict=True
        ):
            assert all(0 <= block < num_blocks for block in block_ids), "blocks exist"
            table.change(block_ids, num_passed)


def is_penalized(params: SamplingParams) -> bool:
    """Whether any penalty depends on the tokens so far."""
    return params.repetition_penalty != 1.0 or _counts_output(params)


def _counts_output(params: SamplingParams) -> bool:
    return params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def _count_tokens(start: RequestStart) -> TokenCounts:
    prompt = start.token_ids[: start.num_prompt_tokens]
    # Presence and frequency penalties count output tokens only.
    counted = prompt if start.sampling_params.repetition_penalty != 1.0 else ()
    return TokenCounts(counted, start.token_ids[start.num_prompt_tokens :])


def _check_ids(token_ids: Sequence[int], vocab_size: int, engine_id: str) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        raise ValueError(
            f"request {engine_id} has a token id outside of the vocabulary (0 to {vocab_size - 1})"
        )


class BlockTable:
    """Grows by doubling. Keeps an entry for each block that the window has passed."""

    __slots__ = ("_num_blocks", "_num_passed", "_table")

    def __init__(self) -> None:
        self._table: npt.NDArray[np.int32] = np.empty(16, dtype=np.int32)
        self._num_blocks = 0
        self._num_passed = 0

    def __len__(self) -> int:
        return self._num_blocks

    @property
    def block_ids(self) -> npt.NDArray[np.int32]:
        """int32 [number of blocks]. The first block that the window has not passed replaces all
        earlier ones: a kernel that reads and masks them never reads another request's
        numbers."""
        return self._table[: self._num_blocks]

    def change(self, block_ids: Sequence[int], num_passed: int) -> None:
        """Append blocks; the window has passed the first `num_passed` ones. In a new table the
        blocks follow these."""
        if block_ids:
            self._grow(block_ids, num_passed)
        if num_passed != self._num_passed:
            assert num_passed < self._num_blocks, "the window has passed only earlier tokens"
            self._table[:num_passed] = self._table[num_passed]
            self._num_passed = num_passed

    def shorten(self, num_blocks: int) -> None:
        """Drop all but the first `num_blocks` entries."""
        self._num_blocks = min(self._num_blocks, num_blocks)

    def _grow(self, block_ids: Sequence[int], num_passed: int) -> None:
        start = max(self._num_blocks, num_passed)
        end = start + len(block_ids)
        if end > len(self._table):
            table = np.empty(max(end, 2 * len(self._table)), dtype=np.int32)
            table[: self._num_blocks] = self.block_ids
            self._table = table
        self._table[start:end] = block_ids
        self._num_blocks = end
