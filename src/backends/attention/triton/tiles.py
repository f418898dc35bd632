"""Divides a step among the programs of the Triton kernels: tiles of tokens, and splits of keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..base import AttentionSpec

MAX_SPLITS = 64
"""The merging kernel loads all splits of a row at once."""
MAX_GROUP_SIZE = 128
"""Maximum of query heads per KV head: one tile holds them all."""

_SMALLEST_SPLIT = 256
"""Keys: with fewer, the merge costs more than the split saves."""
_PROGRAMS_PER_PROCESSOR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """The size of one program of the attention kernel."""

    rows: int
    """Queries times query heads per KV head."""
    keys: int
    num_warps: int
    num_stages: int
    """Tiles of keys and values that are loaded concurrently."""


def power_of_two(number: int) -> int:
    """Round up to a power of two: Triton's ranges have no other sizes."""
    return 1 << (number - 1).bit_length()


def decode_tile(spec: AttentionSpec) -> Tile:
    """Return the tile of one query: the fewest rows of tensor cores, and all stages that fit."""
    rows = max(16, power_of_two(_group_size(spec)))
    num_warps = 8 if _is_single(spec) else 4
    return Tile(rows=rows, keys=_num_keys(spec), num_warps=num_warps, num_stages=3)


def chunk_tile(spec: AttentionSpec) -> Tile:
    """Return the tile of a chunk: all rows that registers hold, to read keys less often."""
    rows = (64 if _is_single(spec) else 128) // (1 if _row_bytes(spec) <= 256 else 2)
    rows = max(rows, power_of_two(_group_size(spec)))
    return Tile(rows=rows, keys=_num_keys(spec), num_warps=8, num_stages=2)


def queries_per_tile(spec: AttentionSpec) -> int:
    """Return how many consecutive queries of a sequence one tile of a chunk holds."""
    return chunk_tile(spec).rows // _group_size(spec)


def count_splits(num_programs: int, longest: int, num_processors: int) -> int:
    """Return the number of programs that share the keys of a tile, so that the GPU is busy.

    `longest` is the longest context in keys, and `num_programs` the number without splits.
    """
    wanted = _PROGRAMS_PER_PROCESSOR * num_processors // max(1, num_programs)
    return max(1, min(wanted, -(-longest // _SMALLEST_SPLIT), MAX_SPLITS))


def tile_chunks(
    query_lens: Sequence[int], seq_lens: Sequence[int], num_decodes: int, queries_per_tile: int
) -> npt.NDArray[np.int32]:
    """Divide prompts and chunks into tiles, int32 [tiles, 4].

    The columns are sequence, first row (counted after the decodes), number of queries, and position
    of the first query. Tiles with the most keys come first, so that no long tile starts last.
    """
    lens_b = np.array(query_lens[num_decodes:], dtype=np.int64)
    starts_b = np.array(seq_lens[num_decodes:], dtype=np.int64) - lens_b
    first_rows_b = np.cumsum(lens_b) - lens_b
    counts_b = -(-lens_b // queries_per_tile)
    index_i = np.repeat(np.arange(len(lens_b)), counts_b)
    first_tiles_b = np.cumsum(counts_b) - counts_b
    query_i = (np.arange(len(index_i)) - first_tiles_b[index_i]) * queries_per_tile
    num_queries_i = np.minimum(lens_b[index_i] - query_i, queries_per_tile)
    position_i = starts_b[index_i] + query_i
    tiles = np.stack(
        (num_decodes + index_i, first_rows_b[index_i] + query_i, num_queries_i, position_i), axis=1
    )
    return tiles[np.argsort(-(position_i + num_queries_i), kind="stable")].astype(np.int32)


def _num_keys(spec: AttentionSpec) -> int:
    """Return the keys of a tile: two stages of keys and values fit into the 99 KiB of any GPU.

    In float32 they take half of that.
    """
    num_bytes = (8 if _is_single(spec) else 16) << 10
    return max(16, min(64, num_bytes // _row_bytes(spec)))


def _is_single(spec: AttentionSpec) -> bool:
    """Whether the spec is in float32: products without tensor cores take more registers."""
    return spec.dtype is torch.float32


def _row_bytes(spec: AttentionSpec) -> int:
    return power_of_two(spec.head_size) * spec.dtype.itemsize


def _group_size(spec: AttentionSpec) -> int:
    return spec.num_heads // spec.num_kv_heads
