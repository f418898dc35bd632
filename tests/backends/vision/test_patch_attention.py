"""Native attention between patches is that of torch, for all sizes of images and heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.backends.chosen import backends_with
from tests.backends.cpu.conftest import instruction_set as instruction_set
from tests.backends.cpu.conftest import library as library
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.cpu.attention import CPUAttention
from tokenmill.backends.cpu.native.library import Library
from tokenmill.backends.cpu.projections import CPULinear
from tokenmill.backends.execution import in_process
from tokenmill.backends.execution.in_process import ModelExecutor
from tokenmill.backends.vision.patch_attention import find_patch_attention
from tokenmill.backends.vision.reading import Vision, load_vision
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.config import EngineConfig
from tokenmill.core.interfaces import no_progress

from .loading import load
from .tiny_models import picture, write_model

CPU = torch.device("cpu")
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 0.02}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("num_heads", "head_size"), [(2, 64), (3, 72), (2, 8)])
def test_all_patches_see_each_other(
    library: Library, instruction_set: str, dtype: torch.dtype, num_heads: int, head_size: int
) -> None:
    """Even if heads are padded, and if an image does not fill its last block of the cache."""
    attend = find_patch_attention(CPUAttention, num_heads, head_size, dtype, CPU)
    assert attend is not None
    for num_patches in (200, 200, 9, 64):
        generator = torch.Generator().manual_seed(num_patches)
        heads_p3hd = torch.randn(num_patches, 3, num_heads, head_size, generator=generator)
        heads_p3hd = heads_p3hd.to(dtype)
        found_phd = attend(heads_p3hd)
        assert found_phd.dtype == dtype
        q_hpd, k_hpd, v_hpd = heads_p3hd.float().permute(1, 2, 0, 3).unbind()
        expected_hpd = F.scaled_dot_product_attention(q_hpd, k_hpd, v_hpd)
        torch.testing.assert_close(
            found_phd.float().transpose(0, 1), expected_hpd, rtol=0, atol=TOLERANCES[dtype]
        )


def test_a_backend_that_does_not_support_the_tower_is_not_used(library: Library) -> None:
    assert find_patch_attention(CPUAttention, 2, 64, torch.float16, CPU) is None
    assert find_patch_attention(None, 2, 64, torch.bfloat16, CPU) is None


def test_a_tower_makes_the_rows_of_transformers(library: Library, tmp_path: Path) -> None:
    model = write_model(tmp_path, "smolvlm")
    found = load(tmp_path, torch.bfloat16, CPULinear, attention=CPUAttention)
    assert found is not None and found.tower.attention is not None
    pixels = picture(model.side, 3)
    exact = model.rows(pixels)
    with torch.inference_mode():
        rows = found.tower.encode(pixels[None])[0]
    assert 0 < (rows.float() - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_uses_native_attention_with_native_products(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """In float32, torch computes attention, so the order of sums stays the same."""
    write_model(tmp_path, "smolvlm")
    loaded: list[Vision | None] = []

    def keep(*args: Any, **kwargs: Any) -> Vision | None:
        loaded.append(load_vision(*args, **kwargs))
        return loaded[0]

    monkeypatch.setattr(in_process, "load_vision", keep)
    config = EngineConfig.from_options(device="cpu", dtype=dtype, num_gpu_blocks_override=8)
    checkpoint, backends = open_checkpoint(tmp_path), backends_with(TorchAttention)
    ModelExecutor.from_checkpoint(
        checkpoint, config, backends, no_progress, reads_images=True
    ).close()
    [vision] = loaded
    assert vision is not None
    assert (vision.tower.attention is not None) is (dtype == "bfloat16")
