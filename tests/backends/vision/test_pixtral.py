"""The vision tower of Mistral 3 makes the rows that transformers makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.oracle.tiny_mistral3 import LONGEST, MERGE, PATCH, make_reference, write_model
from tests.oracle.tiny_smolvlm import picture
from tokenmill.backends.machine.torch_threads import SingleTorchThread
from tokenmill.backends.vision.reading import Vision
from tokenmill.core.errors import ConfigError

from .loading import load as load_any

CHAT = [{"role": "user", "content": [{"type": "image"}]}]
SQUARE = PATCH * MERGE
SHAPES = ((16, 32), (96, 96), (80, 48), (16, 96))
"""Heights and widths, multiples of the pixels of a token."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("mistral3"))


def load(path: Path, dtype: torch.dtype = torch.float32) -> Vision:
    found = load_any(path, dtype)
    assert found is not None
    return found


def rows_of(vision: Vision, seed: int, height: int, width: int) -> torch.Tensor:
    """The rows without the unused rows between the lines."""
    pixels = bytearray(picture(seed, width, height).tobytes())
    with torch.inference_mode():
        [found] = vision.tower.encode(
            torch.frombuffer(pixels, dtype=torch.uint8).view(1, height, width, 3)
        )
    lines, columns = height // SQUARE, width // SQUARE
    assert len(found) == lines * (columns + 1) - 1
    return found[[at for at in range(len(found)) if (at + 1) % (columns + 1)]]


def check_rows(folder: Path) -> None:
    reference, vision = make_reference(folder), load(folder)
    for seed, (height, width) in enumerate(SHAPES):
        expected = reference.rows(CHAT, [picture(seed, width, height)])
        found = rows_of(vision, seed, height, width)
        assert (expected.amax(0) - expected.amin(0)).median() > 0.1, "equal rows prove little"
        bound = 1e-5 * float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=0, atol=bound)


def test_rows_are_those_of_transformers(folder: Path) -> None:
    check_rows(folder)


@pytest.mark.parametrize(
    "fields",
    [{"vision_feature_layer": layer} for layer in (1, 2, -2)]
    + [{"multimodal_projector_bias": True, "projector_hidden_act": "silu"}],
    ids=str,
)
def test_fields_of_the_model_count(tmp_path: Path, fields: dict[str, Any]) -> None:
    check_rows(write_model(tmp_path, **fields))


def test_images_that_are_encoded_together_have_their_own_rows(folder: Path) -> None:
    vision = load(folder)
    pixels_nyxc = torch.stack(
        [
            torch.frombuffer(bytearray(picture(seed, 48, 32).tobytes()), dtype=torch.uint8)
            for seed in (1, 2)
        ]
    ).view(2, 32, 48, 3)
    with torch.inference_mode():
        together = vision.tower.encode(pixels_nyxc)
        alone = [vision.tower.encode(one[None])[0] for one in pixels_nyxc]
    torch.testing.assert_close(together, torch.stack(alone), rtol=0, atol=1e-6)


def test_one_thread_of_torch_changes_no_number_by_much(folder: Path) -> None:
    """When native kernels are used, torch has one thread, and attention uses other threads."""
    vision = load(folder)
    expected = rows_of(vision, 1, 80, 48)
    single = SingleTorchThread()
    try:
        found = rows_of(vision, 1, 80, 48)
    finally:
        single.release()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_the_type_of_the_model_is_kept(folder: Path) -> None:
    exact = rows_of(load(folder), 1, 48, 64)
    found = rows_of(load(folder, torch.bfloat16), 1, 48, 64)
    assert found.dtype == torch.bfloat16
    assert 0 < (found.float() - exact).abs().max() < 0.05 * exact.abs().max()


def test_the_engine_learns_what_images_need(folder: Path) -> None:
    info, config = load(folder).info, json.loads((folder / "config.json").read_text())
    assert info.placeholder_token_id == config["image_token_index"]
    assert (info.shown_token_id, info.largest_span_tokens) == (None, 0)
    side = LONGEST // SQUARE
    assert info.cache_bytes == 8 * (side * (side + 1) - 1) * info.bytes_per_token


def test_the_weights_are_counted(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    own = [t.nbytes for name, t in stored.items() if "vision" in name or "multi_modal" in name]
    assert load(folder).tower.num_bytes == sum(own)


def copy_model(folder: Path, target: Path, vision: dict[str, Any], **fields: Any) -> None:
    """`vision` replaces fields of vision_config in config.json, and `fields` top-level fields."""
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((target / "config.json").read_text()) | fields
    config["vision_config"] |= vision
    (target / "config.json").write_text(json.dumps(config))


def test_older_files_have_other_names(folder: Path, tmp_path: Path) -> None:
    copy_model(folder, tmp_path, {"rope_parameters": None, "rope_theta": 10_000.0})
    stored = load_file(tmp_path / "model.safetensors")
    save_file({f"model.{n}": t for n, t in stored.items()}, tmp_path / "model.safetensors")
    assert torch.equal(rows_of(load(tmp_path), 1, 32, 48), rows_of(load(folder), 1, 32, 48))


@pytest.mark.parametrize(
    ("vision", "fields", "message"),
    [
        ({"num_attention_heads": 8}, {}, "must be a multiple of 4"),
        ({"hidden_act": "mystery"}, {}, "hidden_act 'mystery' is not supported"),
        ({"num_channels": 1}, {}, "only images with 3 channels"),
        ({"num_hidden_layers": 4}, {}, "lacks the tensor"),
        ({"intermediate_size": 80}, {}, "has shape"),
        ({"rope_parameters": {"rope_type": "yarn"}}, {}, "rope_type 'yarn' is not supported"),
        ({"rope_parameters": {"rope_theta": 0}}, {}, "rope_theta must be above 0"),
        ({"hidden_size": 0}, {}, "must be positive"),
        ({"patch_size": 2**31 - 1}, {}, "has shape"),
        ({}, {"vision_feature_layer": [1, 2]}, "must be one of the 3 layers"),
        ({}, {"vision_feature_layer": -5}, "must be one of the 3 layers"),
        ({}, {"projector_hidden_act": "mystery"}, "projector_hidden_act 'mystery'"),
        ({}, {"image_token_index": "[IMG]"}, "image_token_index"),
        ({}, {"image_processor": 5}, "image_processor must be an object"),
        ({}, {"image_processor": {"image_std": [1, 0, 1]}}, "image_std .* must not have 0"),
        ({}, {"not_read": 1 << 64}, "config.json .* serialize"),
        ({}, {"not_read": "\ud800"}, "config.json .* surrogates"),
    ],
)
def test_a_tower_that_cannot_be_computed_is_refused(
    folder: Path, tmp_path: Path, vision: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    copy_model(folder, tmp_path, vision, **fields)
    with pytest.raises(ConfigError, match=message):
        load(tmp_path)
