"""What the runner keeps of one request between steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..core.plan import Grant, RequestStart
from ..core.sampling_params import SamplingParams
from .token_counts import TokenCounts


class RequestState:
    """Tokens, block table and sampling parameters; sampled tokens are appended here at once."""

    __slots__ = (
        "_num_blocks",
        "_table",
        "num_computed_tokens",
        "start",
        "token_counts",
        "token_ids",
    )

    def __init__(self, start: RequestStart, num_computed_tokens: int, vocab_size: int) -> None:
        """Raises ValueError for a token that the model does not have: on a GPU it would end all."""
        params = start.sampling_params
        _check_ids(start.token_ids, vocab_size, start.request_id)
        _check_ids(tuple(params.logit_bias or ()), vocab_size, start.request_id)
        self.start = start
        self.token_ids = list(start.token_ids)
        self.num_computed_tokens = num_computed_tokens
        self.token_counts = _count_tokens(start) if is_penalized(params) else None
        """Only for a request with penalties."""
        self._table: npt.NDArray[np.int32] = np.empty(16, dtype=np.int32)
        self._num_blocks = 0

    @property
    def block_table(self) -> npt.NDArray[np.int32]:
        """int32 [number of blocks]."""
        return self._table[: self._num_blocks]

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.start.num_prompt_tokens

    def advance(self, grant: Grant, block_size: int, num_blocks: int) -> None:
        """Take in a grant: from now on its tokens count as computed."""
        assert grant.start == self.num_computed_tokens, "a plan computes tokens in order"
        end = grant.start + grant.num_tokens
        known = len(self.token_ids)
        assert grant.start < end <= known, "a plan computes tokens that are known"
        assert not grant.samples or end == known, "a plan samples after the last known token"
        if grant.new_block_ids:
            assert all(0 <= block < num_blocks for block in grant.new_block_ids), "blocks exist"
            self._grow(grant.new_block_ids)
        assert end <= self._num_blocks * block_size, "a plan brings the blocks that it fills"
        self.num_computed_tokens = end

    def append_token(self, token_id: int) -> None:
        """Take in the token that was sampled: the next plan may compute it."""
        self.token_ids.append(token_id)
        if self.token_counts is not None:
            self.token_counts.add(token_id)

    def _grow(self, block_ids: Sequence[int]) -> None:
        end = self._num_blocks + len(block_ids)
        if end > len(self._table):
            table = np.empty(max(end, 2 * len(self._table)), dtype=np.int32)
            table[: self._num_blocks] = self.block_table
            self._table = table
        self._table[self._num_blocks : end] = block_ids
        self._num_blocks = end


def is_penalized(params: SamplingParams) -> bool:
    """Whether any penalty depends on the tokens so far."""
    return params.repetition_penalty != 1.0 or _counts_output(params)


def _counts_output(params: SamplingParams) -> bool:
    return params.presence_penalty != 0.0 or params.frequency_penalty != 0.0


def _count_tokens(start: RequestStart) -> TokenCounts:
    prompt = start.token_ids[: start.num_prompt_tokens]
    # Presence and frequency look at the output alone.
    counted = prompt if start.sampling_params.repetition_penalty != 1.0 else ()
    return TokenCounts(counted, start.token_ids[start.num_prompt_tokens :])


def _check_ids(token_ids: Sequence[int], vocab_size: int, request_id: str) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        raise ValueError(
            f"request {request_id} has a token id outside of the vocabulary (0 to {vocab_size - 1})"
        )
