"""TritonAttention in Triton's interpreter, against a naive float64 computation.

Run by test_backend.py in a process of its own: whether kernels are interpreted is decided when
triton is imported. Sizes are small, since each program takes milliseconds; precisions are float32
and float16, since the interpreter's products of bfloat16 are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from triton.runtime import interpreter

from tests.backends.attention.steps import SPEC, VARIANTS, Span, Step
from tokenmill.backends.attention.base import AttentionBatch, AttentionSpec
from tokenmill.backends.attention.kv_layout import KVLayout
from tokenmill.backends.attention.triton.backend import TritonAttention
from tokenmill.testing.conformance.attention import checks as attention_checks

DECODES = [Span(1, n) for n in (1, 8, 9, 63, 64, 65, 150)]
CHUNKS = [Span(n, m) for n, m in ((2, 2), (33, 33), (2, 3), (5, 61), (40, 87), (1, 30))]
BATCHES = {
    "decodes": (DECODES, len(DECODES)),
    "prompts and chunks": (CHUNKS, 0),
    "mixed": ([*DECODES[-2:], *CHUNKS], 2),
}
SPLIT = ([Span(1, 150), Span(1, 1), Span(4, 140), Span(3, 3)], 2)
SHORT = ([Span(1, 20), Span(1, 65), Span(3, 70), Span(9, 9)], 2)


@pytest.fixture(autouse=True, scope="session")
def scalars_are_loop_bounds() -> None:
    """Triton 3.6's interpreter reads them as `int(array)`, which numpy >= 2.4 refuses."""
    patch_tensor = interpreter._patch_lang_tensor

    def patch_tensor_and_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor_and_index


def split_in(step: Step, num_splits: int) -> Step:
    """From now on; not while the cache was filled, which would take long."""
    step.backend._count_splits = lambda num_tiles, longest: num_splits  # type: ignore[attr-defined]
    return step


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", BATCHES)
def test_equals_a_naive_float64_computation(kind: str, variant: str) -> None:
    Step(TritonAttention, replace(SPEC, **VARIANTS[variant]), *BATCHES[kind]).check(1e-5)


@pytest.mark.parametrize("num_splits", [2, 5])
@pytest.mark.parametrize("variant", VARIANTS)
def test_splits_are_merged_into_the_same(variant: str, num_splits: int) -> None:
    """Also where there are more splits than tiles of keys, and most are empty."""
    step = Step(TritonAttention, replace(SPEC, **VARIANTS[variant]), *SPLIT)
    split_in(step, num_splits).check(1e-5)


@pytest.mark.parametrize("block_size", [5, 16, 32, 64, 128])
def test_works_with_any_block_size(block_size: int) -> None:
    Step(TritonAttention, replace(SPEC, block_size=block_size), *SHORT).check(1e-5)


@pytest.mark.parametrize("head_size", [32, 64, 80, 96, 128, 256])
def test_works_with_any_head_size(head_size: int) -> None:
    spec = replace(SPEC, head_size=head_size, scale=head_size**-0.5)
    split_in(Step(TritonAttention, spec, *SHORT), 2).check(1e-5)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (3, 3), (8, 1), (5, 1), (71, 1)])
def test_query_heads_share_kv_heads_in_any_ratio(num_heads: int, num_kv_heads: int) -> None:
    spec = replace(SPEC, num_heads=num_heads, num_kv_heads=num_kv_heads)
    Step(TritonAttention, spec, *SHORT).check(1e-5)


@pytest.mark.parametrize("layout", KVLayout)
def test_writes_its_tokens_and_nothing_else_into_any_layout(layout: KVLayout) -> None:
    step = Step(TritonAttention, replace(SPEC, kv_cache_layout=layout), *SHORT)
    step.check(1e-5)
    keys, values = (x.flatten(0, 1) for x in layout.views(step.cache))
    slots = torch.cat(step.slots)
    assert torch.equal(keys[slots], torch.cat(step.k))
    assert torch.equal(values[slots], torch.cat(step.v))
    rest = torch.ones(len(keys), dtype=torch.bool).index_fill_(0, slots, False)
    assert keys[rest].isnan().all() and values[rest].isnan().all()


def test_float16_stays_within_its_rounding() -> None:
    Step(TritonAttention, replace(SPEC, dtype=torch.float16), *SHORT).check(5e-3)


def test_takes_queries_keys_and_values_that_are_parts_of_one_tensor() -> None:
    step = Step(TritonAttention, SPEC, *SHORT)
    expected = torch.cat(step.run())
    new = [slice(s.seq_len - s.num_queries, None) for s in step.sequences]
    k, v = (
        torch.cat([x[n] for x, n in zip(of, new, strict=True)]).flatten(1)
        for of in (step.k, step.v)
    )
    joined = torch.cat([torch.cat(step.q).flatten(1), k, v], 1)
    sizes = [SPEC.num_heads * SPEC.head_size] + [SPEC.num_kv_heads * SPEC.head_size] * 2
    q, k, v = (x.unflatten(1, (-1, SPEC.head_size)) for x in joined.split(sizes, dim=1))
    out = torch.full_like(expected, torch.nan)
    step.backend.forward(0, q, k, v, step.cache, step.backend.build_metadata(step.batch), out)
    assert torch.equal(out, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, about NaN
@pytest.mark.parametrize("num_splits", [1, 2])
def test_a_sequence_with_nan_does_not_spoil_its_neighbours(num_splits: int) -> None:
    step = Step(TritonAttention, SPEC, *SHORT)
    for index in (1, 3):
        step.k[index].fill_(torch.nan)
    step.cache = step.fill()
    split_in(step, num_splits)
    for index, (actual, expected) in enumerate(zip(step.run(), step.expected(), strict=True)):
        if index in (1, 3):
            assert actual.isnan().all()
        else:
            torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_splits", [1, 2])
def test_a_captured_step_computes_what_is_filled_in_and_pads_with_zeros(num_splits: int) -> None:
    """Replayed twice, first with more sequences: what an earlier step left is not seen."""
    many = split_in(Step(TritonAttention, SPEC, DECODES, len(DECODES)), num_splits)
    few = Step(TritonAttention, SPEC, DECODES[2:4], 2, seed=1)
    backend = many.backend
    assert isinstance(backend, TritonAttention)
    backend.begin_capture(max_num_seqs=8, max_model_len=200)
    metadata = backend.prepare_capture(8)
    for step in (many, few):
        before = step.cache.clone()
        backend.prepare_replay(step.batch, 8)
        out = replay(backend, metadata, step, 8)
        for row, expected in zip(out, torch.cat(step.expected()), strict=False):
            torch.testing.assert_close(row.double(), expected, rtol=1e-5, atol=1e-5)
        assert not out[len(step.sequences) :].any()
        changed = (step.cache != before) & ~(step.cache.isnan() & before.isnan())
        row_size = 2 * SPEC.num_kv_heads * SPEC.head_size
        assert int(changed.sum()) == len(step.sequences) * row_size


def replay(backend: TritonAttention, metadata: Any, step: Step, num_seqs: int) -> torch.Tensor:
    """The captured step's output; rows past the step's sequences hold what they held before."""

    def padded(rows: Sequence[torch.Tensor]) -> torch.Tensor:
        given = torch.stack([x[-1] for x in rows])
        return torch.cat([given, torch.full((num_seqs - len(given), *given.shape[1:]), torch.nan)])

    q, k, v = padded(step.q), padded(step.k), padded(step.v)
    out = torch.full_like(q, torch.nan)
    backend.forward(0, q, k, v, step.cache, metadata, out)
    return out


def test_a_batch_without_queries_attends_nothing() -> None:
    backend = TritonAttention(SPEC)
    batch = AttentionBatch(
        query_start_loc=torch.tensor([0, 0], dtype=torch.int32),
        seq_lens=torch.tensor([8], dtype=torch.int32),
        block_tables_bm=torch.zeros(1, 1, dtype=torch.int32),
        slot_mapping_t=torch.zeros(0, dtype=torch.int64),
        query_lens_host=[0],
        seq_lens_host=[8],
        num_decodes=0,
    )
    assert backend.build_metadata(batch).launches == []


class Interpreted(TritonAttention):
    """On a CPU, which its reasons are against."""

    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        return []


@pytest.mark.parametrize(
    "check",
    [
        attention_checks.check_shared_prefix,
        attention_checks.check_unused_blocks,
        attention_checks.check_other_sequences,
        attention_checks.check_views,
        attention_checks.check_copies,
        attention_checks.check_graphs,
    ],
    ids=lambda check: check.__name__,
)
def test_keeps_what_the_conformance_kit_checks(check: Any) -> None:
    check(Interpreted, replace(SPEC, block_size=16))
