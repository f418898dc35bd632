"""Beginnings of requests in the prefix cache, with and without a window."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tokenmill.core.engine.blocks.pool import BlockPool
from tokenmill.core.engine.prefix_hits import find_prefix
from tokenmill.core.engine.request import Request
from tokenmill.core.requests.sampling_params import SamplingParams

SIZE = 4


def make_request(num_tokens: int) -> Request:
    return Request(
        request_id="0",
        prompt_token_ids=tuple(range(num_tokens)),
        sampling_params=SamplingParams(),
        max_tokens=1,
        arrival_time=0.0,
        seed=0,
    )


def make_pool(request: Request, cached: Sequence[int], window: int | None) -> BlockPool:
    """A pool that caches these blocks of the request. Block i of the pool is its block i."""
    pool = BlockPool(16, SIZE, (window,))
    tokens = request.token_ids
    hashes = request.hashes_for(len(tokens) // SIZE, SIZE)
    for i, block_hash in enumerate(hashes):
        block = pool.take()
        if i in cached:
            pool.publish(block, block_hash, tokens[i * SIZE : (i + 1) * SIZE])
    pool.drop(reversed(range(len(hashes))))
    return pool


@pytest.mark.parametrize(
    ("window", "cached", "num_tokens", "block_ids"),
    [
        (None, [0, 1, 2, 3], 16, [0, 1, 2, 3]),
        (None, [0, 1, 3], 8, [0, 1]),
        (None, [1, 2, 3], 0, []),
        (100, [0, 1, 3], 8, [0, 1]),
        (9, [2, 3], 16, [2, 3]),
        (9, [1, 2, 3], 16, [2, 3]),
        (10, [2, 3], 0, []),
        (10, [1, 2, 3], 16, [1, 2, 3]),
        (9, [0, 1, 3], 8, [0, 1]),
        (9, [1, 2], 12, [1, 2]),
        (2, [0, 2], 12, [2]),
    ],
)
def test_a_hit_needs_the_blocks_that_later_tokens_see(
    window: int | None, cached: list[int], num_tokens: int, block_ids: list[int]
) -> None:
    request = make_request(20)
    hit = find_prefix(make_pool(request, cached, window), request)
    assert (hit.num_tokens, hit.block_ids) == (num_tokens, [block_ids])


@pytest.mark.parametrize("window", [None, 5])
def test_a_hit_never_includes_the_last_token(window: int | None) -> None:
    request = make_request(16)
    hit = find_prefix(make_pool(request, [0, 1, 2, 3], window), request)
    assert hit.num_tokens == 12


@pytest.mark.parametrize(
    ("cached", "num_tokens", "block_ids"),
    [
        (([0, 1, 2, 3], [2, 3]), 16, [[0, 1, 2, 3], [2, 3]]),
        (([0, 1, 2], [2, 3]), 0, [[], []]),
        (([0, 1, 2], [1, 2, 3]), 12, [[0, 1, 2], [1, 2]]),
        (([0, 1, 2, 3], [0, 1, 3]), 8, [[0, 1], [0, 1]]),
        (([1, 2, 3], [0, 1, 2, 3]), 0, [[], []]),
    ],
)
def test_a_hit_is_the_longest_beginning_that_every_group_has(
    cached: tuple[list[int], list[int]], num_tokens: int, block_ids: list[list[int]]
) -> None:
    """The second group has a window of two blocks. Its block i of the request is block 8 + i."""
    request = make_request(20)
    pool = BlockPool(16, SIZE, (None, 9))
    hashes = request.hashes_for(5, SIZE)
    for group, indices in enumerate(cached):
        for block in [pool.take() for _ in range(8)]:
            i = block - 8 * group
            if i in indices:
                tokens = request.token_ids[i * SIZE : (i + 1) * SIZE]
                pool.publish(block, hashes[i], tokens, group)
    hit = find_prefix(pool, request)
    found = [hit.block_ids[0], [block - 8 for block in hit.block_ids[1]]]
    assert (hit.num_tokens, found) == (num_tokens, block_ids)
