"""The attention backend that `auto` chooses on this machine, with text and with images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ..oracle import test_gemma3_images, test_images, toy
from ..oracle.settings import Setting
from ..oracle.tiny_gemma3 import write_model as write_gemma3
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
def smolvlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("smolvlm"), head_size=64)


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gemma3(tmp_path_factory.mktemp("gemma3"))


@pytest.mark.parametrize("setting", test_images.QUICK, ids=str)
def test_chats_with_images_have_the_tokens_of_transformers(smolvlm: Path, setting: Setting) -> None:
    """In float32. The encoder runs on the device, too."""
    chosen = test_images.cases(smolvlm, 12)
    test_images.check_chats(smolvlm, chosen, setting, device=DEVICE.type)


@pytest.mark.parametrize("setting", test_gemma3_images.QUICK, ids=str)
def test_images_whose_tokens_see_each_other_do_so(gemma3: Path, setting: Setting) -> None:
    chosen = test_gemma3_images.cases(gemma3, 12)
    test_gemma3_images.check(gemma3, chosen, setting, device=DEVICE.type)
