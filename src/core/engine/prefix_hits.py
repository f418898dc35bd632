"""Finds the beginning of a request in the prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..requests.media import before_span
from .blocks.pool import BlockPool
from .request import Request

Find = Callable[[int, int], int | None]
"""Returns the cached block of (group, index of the block in the request), or None."""


class PrefixHit(NamedTuple):
    """The beginning of a request that needs no computing."""

    num_tokens: int
    block_ids: Sequence[Sequence[int]]
    """Per group, the last blocks of the beginning: those that its window has not passed."""


def no_hit(pool: BlockPool) -> PrefixHit:
    """The hit of a request of which nothing is cached."""
    return PrefixHit(0, [()] * len(pool.windows))


def find_prefix(pool: BlockPool, request: Request) -> PrefixHit:
    """Find the longest beginning whose blocks, as far as later tokens see them, are cached.

    It never includes the request's last token, which must be computed to sample the next one. It
    never ends inside a span: the tokens in the cache would see those after it, but not be seen.
    """
    size = pool.block_size
    end = (request.num_tokens - 1) // size
    hashes = request.hashes_for(end, size)

    def find(group: int, i: int) -> int | None:
        return pool.find(hashes[i], request.token_ids[i * size : (i + 1) * size], group)

    found: list[list[int]] = [[] for _ in pool.windows]
    for group, window in enumerate(pool.windows):
        if window is None:
            found[group] = _find_first(find, group, end)
            end = len(found[group])
    end = _before_spans(request, end, size)
    if pool.has_windows:
        while end and (missing := _last_missing(pool, find, end)) is not None:
            # A longer beginning has a window that includes the missing block.
            end = _before_spans(request, missing, size)
    for group, num_passed in enumerate(pool.num_passed_blocks(end * size)):
        if pool.windows[group] is None:
            del found[group][end:]
        else:
            blocks = (find(group, i) for i in range(num_passed, end))
            found[group] = [block for block in blocks if block is not None]
    return PrefixHit(end * size, found)


def _find_first(find: Find, group: int, end: int) -> list[int]:
    """The group's blocks up to the first that is not cached."""
    found = []
    for i in range(end):
        block = find(group, i)
        if block is None:
            break
        found.append(block)
    return found


def _before_spans(request: Request, end: int, size: int) -> int:
    """The largest number of blocks up to `end` after which no span is cut."""
    while request.media and (position := before_span(request.media, end * size)) < end * size:
        end = position // size
    return end


def _last_missing(pool: BlockPool, find: Find, end: int) -> int | None:
    """The last block before `end` that is in the window of a group and not cached for it."""
    passed = pool.num_passed_blocks(end * pool.block_size)
    groups = [g for g, window in enumerate(pool.windows) if window is not None]
    for i in range(end - 1, min(passed[g] for g in groups) - 1, -1):
        if any(i >= passed[g] and find(g, i) is None for g in groups):
            return i
    return None
