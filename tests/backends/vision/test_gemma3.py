"""The vision tower of Gemma 3 makes the rows that transformers makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.backends.chosen import backends_with
from tests.oracle.tiny_gemma3 import PATCH, SIDE, TOKENS_PER_IMAGE, make_reference, write_model
from tests.oracle.tiny_smolvlm import picture
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.running.parts.model_parts import choose_spec
from tokenmill.backends.vision.memory import estimate_images
from tokenmill.backends.vision.reading import Vision
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

from .loading import load as load_any
from .loading import siglip

CPU = torch.device("cpu")
CHAT = [{"role": "user", "content": [{"type": "image"}]}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("gemma3"))


def load(path: Path, dtype: torch.dtype = torch.float32) -> Vision:
    found = load_any(path, dtype)
    assert found is not None
    return found


def rows_of(vision: Vision, seed: int) -> torch.Tensor:
    pixels = torch.frombuffer(bytearray(picture(seed, SIDE, SIDE).tobytes()), dtype=torch.uint8)
    with torch.inference_mode():
        return vision.tower.encode(pixels.view(1, SIDE, SIDE, 3))[0]


def test_rows_are_those_of_transformers(folder: Path) -> None:
    reference, vision = make_reference(folder), load(folder)
    rows = []
    for seed in range(3):
        expected = reference.rows(CHAT, [picture(seed, SIDE, SIDE)])
        rows.append(rows_of(vision, seed))
        assert rows[-1].shape == (TOKENS_PER_IMAGE, 64)
        torch.testing.assert_close(rows[-1], expected, rtol=0, atol=1e-5)
    assert (rows[0] - rows[1]).abs().amax(dim=1).min() > 0.1  # otherwise equal rows prove little


def test_the_type_of_the_model_is_kept(folder: Path) -> None:
    exact, found = rows_of(load(folder), 1), rows_of(load(folder, torch.bfloat16), 1)
    assert found.dtype == torch.bfloat16
    assert 0 < (found.float() - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.parametrize("prefix", ["", "model."])
def test_older_files_have_other_names(folder: Path, tmp_path: Path, prefix: str) -> None:
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    stored = load_file(folder / "model.safetensors")
    renamed = {
        prefix + name.replace("vision_tower.", "vision_tower.vision_model."): tensor
        for name, tensor in stored.items()
    }
    assert renamed.keys().isdisjoint(name for name in stored if "vision" in name)
    save_file(renamed, tmp_path / "model.safetensors")
    assert torch.equal(rows_of(load(tmp_path), 1), rows_of(load(folder), 1))


def test_the_engine_learns_what_images_need(folder: Path) -> None:
    info, config = load(folder).info, json.loads((folder / "config.json").read_text())
    assert info.placeholder_token_id == config["image_token_index"]
    assert info.shown_token_id == config["boi_token_index"]
    assert info.largest_span_tokens == TOKENS_PER_IMAGE
    assert info.cache_bytes == 8 * TOKENS_PER_IMAGE * info.bytes_per_token


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_memory_is_known_from_headers(folder: Path, dtype: torch.dtype) -> None:
    vision, spec = load(folder, dtype), LinearSpec(dtype=dtype, device=CPU)
    found = estimate_images(open_checkpoint(folder), EngineConfig(), TorchLinear, spec)
    assert found is not None
    assert found.tower == vision.tower.num_bytes
    assert found.pixels == 8 * 3 * SIDE**2
    assert (found.num_images, found.tokens_per_image) == (8, TOKENS_PER_IMAGE)


def test_the_weights_are_counted(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    own = [t.numel() for name, t in stored.items() if "vision" in name or "multi_modal" in name]
    assert siglip(load(folder)).config.num_parameters == sum(own)


def test_attention_is_asked_to_see_ahead_only_if_images_are_served(folder: Path) -> None:
    checkpoint, backends = open_checkpoint(folder), backends_with(TorchAttention)

    def spec(reads_images: bool, **options: bool) -> bool:
        config = EngineConfig.from_options(device="cpu", dtype="float32", **options)
        return choose_spec(
            checkpoint, config, backends, no_progress, reads_images=reads_images
        ).sees_ahead

    assert spec(True)
    assert not spec(False)
    assert not spec(True, language_model_only=True)


def test_a_number_of_tokens_that_patches_cannot_become_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text()) | {"mm_tokens_per_image": 9}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=f"{SIDE // PATCH} x 8 patches cannot become 9 tokens"):
        load(tmp_path)
