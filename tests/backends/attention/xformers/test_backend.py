"""The adapter of xformers, against a naive float64 computation.

No GPU is needed: the package is a stand-in with its true signatures, see fakes.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tokenmill.backends.attention.kv_layout import KVLayout
from tokenmill.backends.attention.xformers.backend import XformersAttention
from tokenmill.testing.conformance.attention.checks import check_graphs

from .. import steps
from ..package_fakes import Calls, forgotten
from ..steps import BATCHES, VARIANTS, Step
from .fakes import install_xformers

SPEC = replace(steps.SPEC, block_size=64)
BF16 = replace(SPEC, dtype=torch.bfloat16)
WITHOUT_CAP = [name for name, extra in VARIANTS.items() if "logits_soft_cap" not in extra]


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    set_capability(monkeypatch, (9, 0))
    with forgotten("xformers"):
        yield install_xformers(monkeypatch)


def set_capability(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None) -> None:
    monkeypatch.setattr(
        "tokenmill.backends.attention.xformers.backend.compute_capability",
        lambda device: capability,
    )


@pytest.mark.parametrize("block_size", [8, 64])
@pytest.mark.parametrize("variant", WITHOUT_CAP)
@pytest.mark.parametrize("kind", BATCHES)
def test_equals_a_naive_float64_computation(kind: str, variant: str, block_size: int) -> None:
    spec = replace(SPEC, block_size=block_size, **VARIANTS[variant])
    Step(XformersAttention, spec, *BATCHES[kind]).check()


@pytest.mark.parametrize("num_kv_heads", [1, 3, 6])
def test_query_heads_share_kv_heads_in_any_ratio(num_kv_heads: int) -> None:
    Step(XformersAttention, replace(SPEC, num_kv_heads=num_kv_heads), *BATCHES["mixed"]).check()


@pytest.mark.parametrize("layout", KVLayout)
def test_reads_and_writes_any_layout_of_the_cache(layout: KVLayout) -> None:
    spec = replace(SPEC, kv_cache_layout=layout)
    Step(XformersAttention, spec, *BATCHES["mixed"]).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_stay_within_their_rounding(dtype: torch.dtype) -> None:
    spec = replace(SPEC, dtype=dtype)
    assert XformersAttention.reasons_against(spec) == []
    Step(XformersAttention, spec, *BATCHES["mixed"]).check(tolerance=2e-2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"block_size": 16}, "blocks have 16 slots, not a multiple of 64"),
        ({"head_size": 24}, "heads have 24 elements, not a power of two"),
        ({"sliding_window": 11}, "attention has a sliding window"),
        (
            {"kv_cache_layout": KVLayout.HEADS},
            "it shares the cache with a backend of another layout",
        ),
    ],
)
def test_decodes_go_by_block_table_where_the_kernel_can(
    change: dict[str, object],
    reason: str | None,
    calls: Calls,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where it cannot, the log says why, once."""
    step = Step(XformersAttention, replace(SPEC, **change), *BATCHES["decodes"])
    calls.names.clear()
    step.check()
    assert calls.names == (["splitk"] if reason is None else ["attend"])
    told = [vars(r)["reason"] for r in caplog.records if r.msg == "attention_copies_context"]
    assert told == ([] if reason is None else [reason])


def test_copies_without_a_word_what_another_backend_decodes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    XformersAttention(replace(SPEC, block_size=16, computes_decodes=False))
    assert "attention_copies_context" not in caplog.text


def test_says_every_reason_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert XformersAttention.reasons_against(BF16) == []
    set_capability(monkeypatch, (7, 5))
    with forgotten("xformers"):
        assert XformersAttention.reasons_against(
            replace(SPEC, num_kv_heads=4, head_size=20, logits_soft_cap=1.0)
        ) == [
            "it computes in float16 or bfloat16, not in float32",
            "6 query heads cannot share 4 KV heads",
            "it needs compute capability 8.0 or newer, this GPU has 7.5",
            "heads must have a multiple of 8 elements, at most 256, not 20",
            "it has no soft cap of logits",
            "xformers.ops is not installed (pip install xformers)",
        ]
        set_capability(monkeypatch, None)
        assert XformersAttention.reasons_against(BF16)[0] == "it runs on NVIDIA GPUs, not on cpu"


def test_says_what_is_on_this_machine_without_a_model() -> None:
    *lacks, package = XformersAttention.on_this_machine()
    assert package == "xformers: installed"
    if not torch.cuda.is_available():
        assert lacks == [f"no CUDA device: torch {torch.__version__} finds none"]


def test_a_captured_step_computes_what_is_filled_in(calls: Calls) -> None:
    assert XformersAttention(SPEC).graphs == "decodes"
    check_graphs(XformersAttention, SPEC)
    assert "splitk" in calls.names


@pytest.mark.parametrize("changes", [{"block_size": 16}, {"sliding_window": 9}])
def test_what_is_copied_together_is_not_captured(changes: dict[str, int]) -> None:
    assert XformersAttention(replace(SPEC, **changes)).graphs == "never"
