"""The vision tower makes the rows that transformers makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from tokenmill.backends.machine.torch_threads import SingleTorchThread
from tokenmill.backends.vision.reading import Vision
from tokenmill.core.errors import ConfigError

from .loading import load, siglip
from .tiny_models import CLASSES, MEAN, RESCALE, STD, TinyModel, picture, write_model


def encode(vision: Vision | None, pixels_yxc: torch.Tensor) -> torch.Tensor:
    assert vision is not None
    with torch.inference_mode():
        return vision.tower.encode(pixels_yxc[None])[0]


@pytest.fixture(scope="module")
def smolvlm(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_model(tmp_path_factory.mktemp("smolvlm"), "smolvlm")


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(
    ("largest", "factor", "sides"), [(32, 2, (32, 16)), (96, 4, (32, 64, 96)), (72, 3, (24, 48))]
)
def test_rows_are_those_of_transformers(
    tmp_path: Path, kind: str, largest: int, factor: int, sides: tuple[int, ...]
) -> None:
    """Also those of images with fewer patches than the table of positions has."""
    model = write_model(tmp_path, kind, side=largest, factor=factor)
    vision = load(tmp_path)
    for side in sides:
        pixels = picture(side, side)
        expected, found = model.rows(pixels), encode(vision, pixels)
        assert found.shape == (model.tokens_of(side), 64)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_images_that_are_encoded_together_have_their_own_rows(smolvlm: TinyModel) -> None:
    """As on a GPU."""
    vision = load(smolvlm.path)
    assert vision is not None
    pictures = [picture(smolvlm.side, seed) for seed in (1, 2, 3)]
    with torch.inference_mode():
        together = vision.tower.encode(torch.stack(pictures))
    for found, pixels in zip(together, pictures, strict=True):
        torch.testing.assert_close(found, smolvlm.rows(pixels), rtol=0, atol=1e-5)


def test_images_differ_in_all_rows(smolvlm: TinyModel) -> None:
    """Otherwise equal rows prove little."""
    first, second = (smolvlm.rows(picture(smolvlm.side, seed)) for seed in (1, 2))
    assert (first - second).abs().amax(dim=1).min() > 0.1


def test_bytes_become_the_numbers_of_transformers_processor(smolvlm: TinyModel) -> None:
    levels_vc = siglip(load(smolvlm.path)).levels_vc
    processor = Idefics3ImageProcessorPil(
        image_mean=MEAN, image_std=STD, rescale_factor=RESCALE, do_resize=False,
        do_image_splitting=False, max_image_size={"longest_edge": 16},
    )  # fmt: skip
    bytes_yxc = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, axis=2)
    images = processor(bytes_yxc, return_tensors="np")["pixel_values"]
    theirs_cv = images[0, 0].reshape(3, 256)
    assert torch.equal(levels_vc.T, torch.from_numpy(theirs_cv))


def test_the_type_of_the_model_is_kept(smolvlm: TinyModel) -> None:
    pixels = picture(smolvlm.side, 3)
    exact, found = smolvlm.rows(pixels), encode(load(smolvlm.path, torch.bfloat16), pixels)
    assert found.dtype == torch.bfloat16
    assert 0 < (found.float() - exact).abs().max() < 0.05 * exact.abs().max()


def test_one_thread_of_torch_changes_no_number_by_much(smolvlm: TinyModel) -> None:
    """Beside native kernels, attention is divided among threads of its own."""
    vision, pixels = load(smolvlm.path), picture(smolvlm.side, 4)
    single = SingleTorchThread()
    try:
        found = encode(vision, pixels)
    finally:
        single.release()
    torch.testing.assert_close(found, smolvlm.rows(pixels), rtol=0, atol=1e-5)


def test_settings_of_the_processor_count(smolvlm: TinyModel, tmp_path: Path) -> None:
    """Newer files have them in processor_config.json, which takes precedence."""
    copy_model(smolvlm, tmp_path)
    nested = {"image_processor": {"do_normalize": False, "rescale_factor": 0.5}}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    assert torch.equal(siglip(load(tmp_path)).levels_vc[:, 1], torch.arange(256) * 0.5)


def test_the_engine_learns_what_images_need(smolvlm: TinyModel) -> None:
    vision = load(smolvlm.path, torch.bfloat16)
    assert vision is not None
    info = vision.info
    assert (info.placeholder_token_id, info.bytes_per_token) == (500, 128)
    # 8 images, each with 2 x 2 tiles and the whole one
    tokens = (2 * 2 + 1) * smolvlm.tokens_of(smolvlm.side)
    assert info.cache_bytes == 8 * tokens * 128


def test_the_weights_are_counted(smolvlm: TinyModel) -> None:
    tower = siglip(load(smolvlm.path))
    stored = load_file(smolvlm.path / "model.safetensors")
    own = [t for name, t in stored.items() if "vision_model" in name or "connector" in name]
    assert tower.num_bytes == sum(tensor.nbytes for tensor in own)
    assert tower.config.num_parameters == sum(tensor.numel() for tensor in own)


def copy_model(model: TinyModel, target: Path, **fields: Any) -> None:
    """`fields` replace those of config.json's vision part."""
    for file in model.path.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "config.json").read_text())
    config["vision_config"] |= fields
    (target / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_attention_heads": 5}, "heads divide hidden_size"),
        ({"hidden_act": "mystery"}, "hidden_act 'mystery' is not supported"),
        ({"num_channels": 1}, "only images with 3 channels"),
        ({"num_hidden_layers": 3}, "lacks the tensor"),
        ({"intermediate_size": 81}, "has shape"),
        ({"image_size": 1 << 20}, "do not fit"),
        ({"patch_size": 0}, "must be positive"),
    ],
)
def test_a_tower_that_cannot_be_computed_is_refused(
    smolvlm: TinyModel, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    copy_model(smolvlm, tmp_path, **fields)
    with pytest.raises(ConfigError, match=message):
        load(tmp_path)


def test_a_missing_tensor_is_named(smolvlm: TinyModel, tmp_path: Path) -> None:
    copy_model(smolvlm, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.vision_model.post_layernorm.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"vision_model\.post_layernorm\.bias"):
        load(tmp_path)
