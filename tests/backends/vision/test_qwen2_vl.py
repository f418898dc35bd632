"""The vision tower of Qwen2.5-VL is transformers' own, with our pixels and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.oracle.tiny_qwen2_vl import UNIT, make_reference, write_model
from tests.oracle.tiny_smolvlm import picture
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.machine.torch_threads import SingleTorchThread
from tokenmill.backends.media.qwen2_vl.processor import Qwen2VLProcessor
from tokenmill.backends.vision.memory import estimate_images
from tokenmill.backends.vision.reading import Vision
from tokenmill.backends.vision.wrapped.tower import WrappedTower
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError

from .loading import load as load_any

CPU = torch.device("cpu")
CHAT = [{"role": "user", "content": [{"type": "image"}]}]
SIZES = ((64, 64), (200, 40), (9, 30))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("qwen2_vl"))


def load(path: Path, dtype: torch.dtype = torch.float32) -> Vision:
    found = load_any(path, dtype)
    assert found is not None
    return found


def pixels_of(vision: Vision, image: Image.Image) -> torch.Tensor:
    [item] = Qwen2VLProcessor(vision.info.config, {}).process(image).items
    pixels = np.frombuffer(item.data, np.uint8).reshape(1, *item.shape)
    return torch.from_numpy(pixels.copy())


def rows_of(vision: Vision, image: Image.Image) -> torch.Tensor:
    with torch.inference_mode():
        return vision.tower.encode(pixels_of(vision, image))[0]


def test_rows_and_pixels_are_those_of_transformers(folder: Path) -> None:
    reference, vision = make_reference(folder), load(folder)
    assert isinstance(vision.tower, WrappedTower)
    for seed, size in enumerate(SIZES):
        image = picture(seed, *size)
        inputs = reference.inputs(CHAT, [image])
        assert torch.equal(vision.tower.patches(pixels_of(vision, image)), inputs["pixel_values"])
        rows, expected = rows_of(vision, image), reference.rows(CHAT, [image])
        torch.testing.assert_close(rows, expected, rtol=0, atol=5e-5)
        assert rows.std(dim=0).min() > 0.01  # otherwise equal rows prove little


def test_the_type_of_the_model_is_kept_and_torch_has_its_threads_only_meanwhile(
    folder: Path,
) -> None:
    image = picture(1, 64, 64)
    exact, thread = rows_of(load(folder), image), SingleTorchThread()
    try:
        found = rows_of(load(folder, torch.bfloat16), image)
        assert torch.get_num_threads() == 1
    finally:
        thread.release()
    assert found.dtype == torch.bfloat16
    assert 0 < (found.float() - exact).abs().max() < 0.1 * exact.abs().max()


def test_the_engine_learns_what_images_need(folder: Path) -> None:
    info, config = load(folder).info, json.loads((folder / "config.json").read_text())
    assert info.placeholder_token_id == config["image_token_id"]
    assert info.shown_token_id is None
    assert info.largest_span_tokens == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_memory_is_known_from_headers(folder: Path, dtype: torch.dtype) -> None:
    vision, spec = load(folder, dtype), LinearSpec(dtype=dtype, device=CPU)
    found = estimate_images(open_checkpoint(folder), EngineConfig(), TorchLinear, spec)
    assert found is not None
    assert found.tower == vision.tower.num_bytes
    assert found.cache == vision.info.cache_bytes
    # An image with few rows is not shrunk as far as others: 1 x 70 tokens.
    assert found.tokens_per_image >= 70
    assert found.pixels == 8 * found.tokens_per_image * 3 * UNIT**2
    square: dict[str, Any] = {"image": {"count": 2, "width": 64, "height": 64}}
    config = EngineConfig.from_options(limit_mm_per_prompt=square)
    small = estimate_images(open_checkpoint(folder), config, TorchLinear, spec)
    assert small is not None
    assert (small.tokens_per_image, small.pixels) == (16, 2 * 64 * 64 * 3)
    assert small.encoder < found.encoder


def test_names_of_newer_files_are_known(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    stored = load_file(folder / "model.safetensors")
    save_file(
        {name.replace("visual.", "model.visual."): one for name, one in stored.items()},
        tmp_path / "model.safetensors",
    )
    image = picture(1, 64, 64)
    assert torch.equal(rows_of(load(tmp_path), image), rows_of(load(folder), image))


REFUSED: dict[str, dict[str, Any]] = {
    "depth in .* must be from 1 to 1024": {"depth": 10**9},
    "hidden_size / num_heads, must be a multiple of 4": {"num_heads": 16},
    "fullatt_block_indexes must be a list of integers, got 1": {"fullatt_block_indexes": 1},
    "only images with 3 channels": {"in_channels": 4},
    "out_hidden_size must be the text model's hidden_size, 64, got 32": {"out_hidden_size": 32},
    "window_size must be at least": {"window_size": 8},
    r"visual.blocks.0.mlp.gate_proj.weight in .* has shape \[48, 32\], expected \[80, 32\]": {
        "intermediate_size": 80
    },
    "lacks the tensor visual.blocks.3": {"depth": 4},
}


@pytest.mark.parametrize("why", REFUSED)
def test_towers_that_cannot_be_computed_are_refused(folder: Path, tmp_path: Path, why: str) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"] |= REFUSED[why]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=why):
        load(tmp_path)


def test_settings_of_the_processor_that_no_message_can_have_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--mm-processor-kwargs: .* serialize"):
        EngineConfig.from_options(mm_processor_kwargs='{"max_pixels": 99999999999999999999999}')
