"""Why the CUDA backend cannot serve, and how it is offered; tests/backends/cuda has its kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.backends.attention.steps import GPU_SPEC
from tokenmill.backends.cuda import attention as cuda_paged
from tokenmill.backends.cuda import paged_attention
from tokenmill.backends.cuda.attention import CudaPagedAttention
from tokenmill.backends.machine.compiling import BuildError

SPEC = replace(GPU_SPEC, num_heads=8, num_kv_heads=2)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU and nvcc, as far as the probes can tell."""
    monkeypatch.setattr(cuda_paged, "compute_capability", lambda device: (9, 0))
    monkeypatch.setattr(cuda_paged, "find_nvcc", lambda: "/usr/local/cuda/bin/nvcc")


def refuse() -> None:
    raise BuildError("nvcc was not found")


def test_says_every_reason_at_once_and_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_paged, "PREBUILT", Path("/nowhere"))
    monkeypatch.setattr(cuda_paged, "find_nvcc", refuse)
    monkeypatch.setattr(cuda_paged, "load_operators", lambda: pytest.fail("built"))
    spec = replace(
        SPEC,
        device=torch.device("cpu"),
        dtype=torch.float64,
        num_kv_heads=3,
        head_size=72,
        scale=-1.0,
    )
    assert CudaPagedAttention.reasons_against(spec) == [
        "it runs on NVIDIA GPUs, not on cpu",
        "it computes in float16, bfloat16 or float32, not in float64",
        "8 query heads cannot share 3 KV heads",
        "heads must have 64, 80, 96, 112, 128, 192, 256 elements, not 72",
        "scores must be scaled by a positive factor, not -1.0",
        "nvcc was not found",
    ]


def test_an_old_gpu_is_a_reason(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_paged, "compute_capability", lambda device: (7, 5))
    assert CudaPagedAttention.reasons_against(SPEC) == [
        "it needs compute capability 8.0 or newer, this GPU has 7.5"
    ]


def test_a_failed_build_is_a_reason(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_paged, "load_operators", refuse)
    assert CudaPagedAttention.reasons_against(SPEC) == ["nvcc was not found"]


@pytest.mark.parametrize("block_size", [1, 8, 16, 48, 256])
def test_any_block_size_will_do(
    block_size: int, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_paged, "load_operators", lambda: None)
    assert CudaPagedAttention.reasons_against(replace(SPEC, block_size=block_size)) == []


def test_a_built_library_needs_no_nvcc(
    gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cuda_paged, "find_nvcc", refuse)
    monkeypatch.setattr(cuda_paged, "load_operators", lambda: None)
    (tmp_path / "library.so").write_bytes(b"")
    monkeypatch.setattr(cuda_paged, "PREBUILT", tmp_path / "library.so")
    assert CudaPagedAttention.reasons_against(SPEC) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_says_what_this_machine_lacks_without_a_model() -> None:
    assert any("no CUDA device" in line for line in CudaPagedAttention.on_this_machine())


def test_copies_blocks_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that was a target may be the source of a later pair."""
    monkeypatch.setattr(paged_attention, "load_operators", lambda: None)
    backend = CudaPagedAttention(replace(SPEC, device=torch.device("cpu")))
    shape = backend.kv_cache_shape(4)
    assert shape == (4, 2, 2, 16, 128)
    cache = torch.arange(4.0).view(4, 1, 1, 1, 1).expand(shape).clone()
    backend.copy_blocks(cache, cache, [(3, 0), (0, 1)])
    assert [cache[block].mean() for block in range(4)] == [3, 3, 2, 3]
