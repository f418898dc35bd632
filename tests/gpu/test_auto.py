"""The attention backend that `auto` chooses on this machine, with text and with images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ..oracle import toy
from ..oracle.settings import Setting
from ..oracle.test_images import QUICK, cases, check_chats
from ..oracle.tiny_smolvlm import write_model
from .contenders import DEVICE, skip_without_device
from .engine import CHECKPOINT, MOST_REGRET, largest_regret, serve

skip_without_device()

OWN_KERNELS = {
    torch.float32: ("cuda-paged", "triton"),
    torch.bfloat16: ("flash-attn", "cuda-paged", "triton"),
}


@pytest.mark.parametrize("dtype", OWN_KERNELS, ids=str)
def test_auto_takes_a_backend_for_gpus(dtype: torch.dtype) -> None:
    """Its numbers were compared with those of torch before."""
    model = toy.make_reference(CHECKPOINT)
    served, chosen = serve("auto", Setting(scheduler="chunked"), toy.make_cases(model), dtype)
    if DEVICE.type == "cuda":
        assert served.attention_backend in OWN_KERNELS[dtype]
    assert largest_regret(model, chosen, served.token_ids) < MOST_REGRET


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("smolvlm"), head_size=64)


@pytest.mark.parametrize("setting", QUICK, ids=str)
@pytest.mark.parametrize("options", [{}, {"speculative_method": "ngram"}], ids=["plain", "drafts"])
def test_chats_with_images_have_the_tokens_of_transformers(
    folder: Path, setting: Setting, options: dict[str, Any]
) -> None:
    """In float32. The encoder runs on the device, too."""
    check_chats(folder, cases(folder, 12), setting, device=DEVICE.type, **options)
