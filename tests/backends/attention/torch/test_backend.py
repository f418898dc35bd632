"""TorchAttention against a naive float64 computation, over ragged batches and poisoned blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tokenmill.backends.attention.fp8 import FP8_DTYPES, movable, quantize
from tokenmill.backends.attention.torch.backend import TorchAttention

from ..steps import BATCHES, CHUNKS, IMAGES, PROMPTS, SPEC, VARIANTS, Step


@pytest.mark.parametrize("variant", VARIANTS | IMAGES)
@pytest.mark.parametrize("kind", BATCHES)
def test_equals_a_naive_float64_computation(kind: str, variant: str) -> None:
    sequences, num_decodes = BATCHES[kind]
    Step(
        TorchAttention, replace(SPEC, **(VARIANTS | IMAGES)[variant]), sequences, num_decodes
    ).check()


@pytest.mark.parametrize("block_size", [1, 5, 8, 16, 32])
def test_works_with_any_block_size(block_size: int) -> None:
    sequences, num_decodes = BATCHES["mixed"]
    Step(
        TorchAttention,
        replace(SPEC, block_size=block_size),
        sequences,
        num_decodes,
        seed=block_size,
    ).check()


@pytest.mark.parametrize("num_kv_heads", [1, 3, 6])
def test_query_heads_share_kv_heads_in_any_ratio(num_kv_heads: int) -> None:
    sequences, num_decodes = BATCHES["mixed"]
    Step(TorchAttention, replace(SPEC, num_kv_heads=num_kv_heads), sequences, num_decodes).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_stay_within_their_rounding(dtype: torch.dtype) -> None:
    sequences, num_decodes = BATCHES["mixed"]
    Step(TorchAttention, replace(SPEC, dtype=dtype), sequences, num_decodes).check(tolerance=2e-2)


@pytest.mark.parametrize("kind", FP8_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("variant", ["plain", "window and cap"])
def test_keys_and_values_of_8_bits_are_rounded_and_nothing_else(
    kind: torch.dtype, dtype: torch.dtype, variant: str
) -> None:
    sequences, num_decodes = BATCHES["mixed"]
    spec = replace(SPEC, dtype=dtype, kv_cache_dtype=kind, **VARIANTS[variant])
    step = Step(TorchAttention, spec, sequences, num_decodes)
    step.check(tolerance=2e-6 if dtype is torch.float32 else 2e-2)
    keys, values = step.cache.flatten(1, 2)
    written = torch.cat(step.slots)
    for cached, rows in ((keys, step.k), (values, step.v)):
        expected = quantize(torch.cat(rows), kind)
        assert torch.equal(movable(cached)[written], movable(expected))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_computes_the_same() -> None:
    sequences, num_decodes = BATCHES["mixed"]
    Step(TorchAttention, replace(SPEC, device=torch.device("cuda")), sequences, num_decodes).check(
        tolerance=1e-4
    )


def test_long_chunks_are_computed_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.backends.attention.torch.backend._MAX_MASK_SIZE", 200)
    Step(TorchAttention, replace(SPEC, sliding_window=20), [*CHUNKS, *PROMPTS], 0).check()


def test_writes_the_step_s_keys_and_values_and_nothing_else() -> None:
    """Every token lands in its slot; all other slots keep what they held."""
    step = Step(TorchAttention, SPEC, *BATCHES["mixed"])
    step.run()
    flat = step.cache.view(2, -1, SPEC.num_kv_heads, SPEC.head_size)
    written = torch.cat(step.slots)
    assert torch.equal(flat[0, written], torch.cat(step.k))
    assert torch.equal(flat[1, written], torch.cat(step.v))
    rest = torch.ones(flat.shape[1], dtype=torch.bool).index_fill_(0, written, False)
    assert flat[:, rest].isnan().all()


def test_a_sequence_with_nan_does_not_spoil_its_neighbours() -> None:
    step = Step(TorchAttention, SPEC, *BATCHES["mixed"])
    step.check_with_nan(2, 9, tolerance=2e-6)


def test_copies_blocks_in_order() -> None:
    """A block that was a target may be the source of a later pair."""
    backend = TorchAttention(SPEC)
    cache = torch.arange(4.0).view(1, 4, 1, 1, 1).expand(backend.kv_cache_shape(4)).clone()
    backend.copy_blocks(cache, cache, [(3, 0), (0, 1)])
    assert [cache[0, block].mean() for block in range(4)] == [3, 3, 2, 3]


def test_says_every_reason_against_a_spec() -> None:
    spec = replace(SPEC, dtype=torch.float64, device=torch.device("meta"), num_kv_heads=4)
    assert len(TorchAttention.reasons_against(spec)) == 3
    assert TorchAttention.reasons_against(SPEC) == []


def test_a_captured_step_reads_no_more_keys_than_the_window_has() -> None:
    windowed = replace(SPEC, sliding_window=20)
    keys = []
    for spec in (SPEC, windowed):
        backend = TorchAttention(spec)
        backend.begin_capture(max_num_seqs=4, max_model_len=300)
        (group,) = backend.prepare_capture(3).decode_groups
        keys.append(tuple(group.slots_bl.shape))
    assert keys == [(3, 304), (3, 32)]
