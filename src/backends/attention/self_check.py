"""Compares a backend with torch on this machine, before `auto` chooses it.

Kernels for GPUs depend on the GPU, its driver and the versions of several packages. The tests know
few of these combinations.

Shape suffixes: t tokens of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from .base import AttentionBatch, AttentionSpec
from .packages import describe
from .torch.backend import TorchAttention

_SEQUENCES = ((1, 1), (1, 130), (20, 60), (33, 33))
"""Queries and tokens of the step's sequences: decodes, a chunk of a prompt, and a prompt."""
_TOLERANCE = {torch.float32: 1e-3}
_TOLERANCE_OF_HALF = 0.05
"""Maximum error of a number, where the largest are about 1; a missing token costs more."""


@lru_cache(maxsize=64)
@torch.inference_mode()
def reasons_of_self_check(backend: Any, spec: AttentionSpec) -> list[str]:
    """Return why the backend cannot be used here: it fails, or computes other numbers than torch.

    `backend` is a class, or an object that is used like one, that can serve `spec`.
    """
    try:
        own = _compute(backend, spec)
    except Exception as error:  # a package may fail in any way
        return [f"it fails on this machine: {describe(error)}"]
    expected = _compute(TorchAttention, replace(spec, kv_cache_layout=None))
    distance = max(float((a - b).abs().max()) for a, b in zip(own, expected, strict=True))
    if distance <= _TOLERANCE.get(spec.cache_dtype, _TOLERANCE_OF_HALF):  # NaN is wrong, too
        return []
    return [f"on this machine its numbers differ from those of torch by {distance:.2g}"]


def _compute(backend: Any, spec: AttentionSpec) -> list[torch.Tensor]:
    """The results of two steps: the tokens before the sequences' queries, then the queries."""
    attention = backend(spec)
    size = spec.block_size
    num_blocks = [-(-length // size) for _, length in _SEQUENCES]
    shape = attention.kv_cache_shape(sum(num_blocks))
    cache = torch.zeros(shape, dtype=spec.cache_dtype, device=spec.device)
    random = torch.Generator(spec.device).manual_seed(0)
    if spec.has_sinks:
        attention.use_sinks([torch.zeros(spec.num_heads, device=spec.device)])
    earlier = [(length - count, length - count) for count, length in _SEQUENCES]
    results = []
    for sequences in (earlier, _SEQUENCES):
        batch = _batch(sequences, num_blocks, size, spec.device)
        heads = spec.num_heads, spec.num_kv_heads, spec.num_kv_heads
        num_tokens = len(batch.slot_mapping_t)
        q, k, v = (
            torch.randn(
                (num_tokens, count, spec.head_size),
                generator=random,
                device=spec.device,
                dtype=torch.float32,
            ).to(spec.dtype)
            for count in heads
        )
        out = torch.empty_like(q)
        attention.forward(0, q, k, v, cache, attention.build_metadata(batch), out)
        results.append(out.float())
    return results


def _batch(
    sequences: Sequence[tuple[int, int]],
    num_blocks: Sequence[int],
    block_size: int,
    device: torch.device,
) -> AttentionBatch:
    """The step of the sequences that have queries."""
    first, tables = 0, []
    for count in num_blocks:
        tables.append(list(range(first, first + count)))
        first += count
    used = [(*one, table) for one, table in zip(sequences, tables, strict=True) if one[0]]
    slots = [
        table[position // block_size] * block_size + position % block_size
        for count, length, table in used
        for position in range(length - count, length)
    ]
    starts = [0]
    for count, *_ in used:
        starts.append(starts[-1] + count)
    longest = max(len(table) for *_, table in used)
    padded = [table + [0] * (longest - len(table)) for *_, table in used]

    def on_device(numbers: object, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(numbers, dtype=dtype, device=device)

    return AttentionBatch(
        query_start_loc=on_device(starts, torch.int32),
        seq_lens=on_device([length for _, length, _ in used], torch.int32),
        block_tables_bm=on_device(padded, torch.int32),
        slot_mapping_t=on_device(slots, torch.int64),
        query_lens_host=[count for count, *_ in used],
        seq_lens_host=[length for _, length, _ in used],
        num_decodes=sum(count == 1 for count, *_ in used),
    )
