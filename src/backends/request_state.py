"""What the runner keeps of one request between steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..core.plan import Grant, RequestStart


class RequestState:
    """Tokens, block table and sampling parameters; sampled tokens are appended here at once."""

    __slots__ = ("_num_blocks", "_table", "num_computed_tokens", "start", "token_ids")

    def __init__(self, start: RequestStart, num_computed_tokens: int) -> None:
        self.start = start
        self.token_ids = list(start.token_ids)
        self.num_computed_tokens = num_computed_tokens
        self._table: npt.NDArray[np.int32] = np.empty(16, dtype=np.int32)
        self._num_blocks = 0

    @property
    def block_table(self) -> npt.NDArray[np.int32]:
        """int32 [number of blocks]."""
        return self._table[: self._num_blocks]

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - self.start.num_prompt_tokens

    def grow(self, block_ids: tuple[int, ...]) -> None:
        """Append blocks to the table."""
        end = self._num_blocks + len(block_ids)
        if end > len(self._table):
            table = np.empty(max(end, 2 * len(self._table)), dtype=np.int32)
            table[: self._num_blocks] = self.block_table
            self._table = table
        self._table[self._num_blocks : end] = block_ids
        self._num_blocks = end

    def advance(self, grant: Grant, block_size: int) -> None:
        """Take in a grant: from now on its tokens count as computed."""
        assert grant.start == self.num_computed_tokens, (
            "a plan computes a request's tokens in order"
        )
        end = grant.start + grant.num_tokens
        assert end <= len(self.token_ids), "a plan computes only tokens that are known"
        self.grow(grant.new_block_ids)
        assert end <= self._num_blocks * block_size, "a plan brings the blocks that it fills"
        self.num_computed_tokens = end
