"""Finds the beginning of a request in the prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .blocks import BlockPool
from .request import Request

_MISSING = -1


class PrefixHit(NamedTuple):
    """The beginning of a request that needs no computing."""

    num_tokens: int = 0
    block_ids: Sequence[int] = ()
    """The last blocks of the beginning: those that the window has not passed."""


def find_prefix(pool: BlockPool, request: Request) -> PrefixHit:
    """Find the longest beginning whose blocks, as far as later tokens see them, are cached.

    It never includes the request's last token, which must be computed to sample the next one.
    """
    size = pool.block_size
    num_blocks = (request.num_tokens - 1) // size
    found: list[int] = []  # for each block of the request the cached one, or _MISSING
    begin = end = 0
    for i, block_hash in enumerate(request.hashes_for(num_blocks, size)):
        block = pool.find(block_hash, request.token_ids[i * size : (i + 1) * size])
        if block is None and pool.window is None:
            break
        if block is None:
            begin = i + 1
        found.append(_MISSING if block is None else block)
        if begin <= pool.num_passed_blocks((i + 1) * size):
            end = i + 1
    return PrefixHit(end * size, found[pool.num_passed_blocks(end * size) : end])
