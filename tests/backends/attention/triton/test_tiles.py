"""How the Triton backend divides a step; needs no triton."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.backends.attention.steps import GPU_SPEC
from tokenmill.backends.attention.triton.tiles import (
    MAX_SPLITS,
    chunk_tile,
    count_splits,
    decode_tile,
    queries_per_tile,
    tile_chunks,
)


def test_every_query_of_every_chunk_is_in_exactly_one_tile() -> None:
    """Decodes and sequences without queries have none."""
    query_lens, seq_lens = [1, 1, 20, 0, 5, 8, 33], [9, 3, 20, 7, 50, 8, 100]
    tiles = tile_chunks(query_lens, seq_lens, num_decodes=2, queries_per_tile=8)
    taken = {
        (int(sequence), int(row) + i): int(position) + i
        for sequence, row, num_queries, position in tiles
        for i in range(num_queries)
    }
    assert tiles[:, 2].max() <= 8
    rows = iter(range(sum(query_lens[2:])))
    assert taken == {
        (sequence, next(rows)): seq_lens[sequence] - query_lens[sequence] + query
        for sequence in range(2, len(query_lens))
        for query in range(query_lens[sequence])
    }


def test_tiles_with_the_most_keys_come_first() -> None:
    tiles = tile_chunks([16, 16], [16, 500], num_decodes=0, queries_per_tile=8)
    ends = (tiles[:, 2] + tiles[:, 3]).tolist()
    assert ends == sorted(ends, reverse=True)


def test_contexts_are_split_only_where_programs_are_few_and_keys_many() -> None:
    assert count_splits(num_programs=8, longest=32768, num_processors=132) == 33
    assert count_splits(num_programs=1, longest=131072, num_processors=132) == MAX_SPLITS
    assert count_splits(num_programs=8, longest=600, num_processors=132) == 3
    assert count_splits(num_programs=8, longest=200, num_processors=132) == 1
    assert count_splits(num_programs=2048, longest=32768, num_processors=132) == 1
    assert count_splits(num_programs=0, longest=0, num_processors=132) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_size", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("num_heads", [8, 32, 71 * 8, 128 * 8])
def test_tiles_hold_whole_groups_of_query_heads(
    num_heads: int, head_size: int, dtype: torch.dtype
) -> None:
    spec = replace(GPU_SPEC, num_heads=num_heads, head_size=head_size, dtype=dtype)
    for tile in (decode_tile(spec), chunk_tile(spec)):
        assert tile.rows >= max(16, num_heads // 8) and tile.rows & (tile.rows - 1) == 0
        assert tile.keys >= 16 and tile.keys & (tile.keys - 1) == 0
    assert queries_per_tile(spec) >= 1
