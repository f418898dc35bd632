"""The KV memory that a sequence needs, with and without sliding windows.

`windows` has an entry per group of layers: see `ModelInfo.kv_windows`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial


def max_blocks_held(
    num_tokens: int, *, block_size: int, window: int | None, step_tokens: int
) -> int:
    """Maximum number of blocks that a sequence of `num_tokens` tokens holds at one time in a group.

    A step computes at most `step_tokens` of its tokens. With a window, the sequence then needs only
    the blocks of these tokens and of those that the first of them sees.
    """
    most = -(-num_tokens // block_size)
    if window is None:
        return most
    num_seen = window - 1 + step_tokens
    # In the worst case, the first token that they see is the last one of its block.
    return min(most, 1 + -(-(num_seen - 1) // block_size))


def longest_sequence(
    max_len: int,
    num_blocks: int,
    *,
    block_size: int,
    windows: Sequence[int | None],
    step_tokens: int,
) -> int:
    """Length of the longest sequence that fits into `num_blocks` blocks; at most `max_len`."""
    held = partial(blocks_held, block_size=block_size, windows=windows, step_tokens=step_tokens)
    return bisect_right(range(max_len + 1), num_blocks, key=held) - 1


def blocks_held(
    num_tokens: int, *, block_size: int, windows: Sequence[int | None], step_tokens: int
) -> int:
    """Maximum number of blocks that a sequence holds at one time, in all groups."""
    return sum(
        max_blocks_held(num_tokens, block_size=block_size, window=window, step_tokens=step_tokens)
        for window in windows
    )
