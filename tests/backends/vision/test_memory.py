"""The memory for images is known from headers, and a model with images that do not fit is refused
before weights are read."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.backends.chosen import backends_with
from tests.backends.cpu.conftest import library as library
from tests.oracle import tiny_mistral3
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.cpu.native.library import Library
from tokenmill.backends.cpu.projections import CPULinear
from tokenmill.backends.execution.in_process import ModelExecutor
from tokenmill.backends.linear.base import LinearBackend, LinearSpec
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.models.base import ModelSpec
from tokenmill.backends.models.native.implementation import NativeModels
from tokenmill.backends.running.parts import memory_need
from tokenmill.backends.running.parts.memory_need import refuse_too_large
from tokenmill.backends.running.parts.model_parts import choose_spec, keeping_of
from tokenmill.backends.vision.memory import ImageMemory, estimate_images
from tokenmill.backends.vision.reading import load_vision
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.backends.weights.files.safetensors_files import SafetensorsFiles
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

from .tiny_models import TinyModel, write_model

CPU = torch.device("cpu")
BACKENDS = backends_with(TorchAttention)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_model(tmp_path_factory.mktemp("images"), "smolvlm")


def estimate(
    path: Path, linear: type[LinearBackend] = TorchLinear, dtype: torch.dtype = torch.float32,
    **options: Any,
) -> ImageMemory | None:  # fmt: skip
    config = EngineConfig.from_options(**options)
    return estimate_images(
        open_checkpoint(path), config, linear, LinearSpec(dtype=dtype, device=CPU)
    )


def check_tower(path: Path, linear: type[LinearBackend], dtype: torch.dtype) -> None:
    spec = LinearSpec(dtype=dtype, device=CPU)
    found, config = estimate(path, linear, dtype), EngineConfig()
    loaded = load_vision(
        open_checkpoint(path), config, dtype=dtype, device=CPU, linear=linear(spec)
    )
    assert found is not None and loaded is not None
    assert found.tower == loaded.tower.num_bytes
    assert found.cache == loaded.info.cache_bytes


@pytest.fixture(scope="module", params=["smolvlm", "mistral3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    return (
        tiny_mistral3.write_model(path)
        if request.param == "mistral3"
        else write_model(path, request.param).path
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_estimate_is_what_is_loaded(folder: Path, dtype: torch.dtype) -> None:
    check_tower(folder, TorchLinear, dtype)


def test_the_estimate_is_what_native_kernels_keep(library: Library, folder: Path) -> None:
    check_tower(folder, CPULinear, torch.bfloat16)


def test_a_lower_limit_needs_less(model: TinyModel) -> None:
    default, two = estimate(model.path), estimate(model.path, limit_mm_per_prompt={"image": 2})
    wide = {"image": {"count": 2, "width": 400, "height": 100}}
    flat = estimate(model.path, limit_mm_per_prompt=wide)
    assert default is not None and two is not None and flat is not None
    assert (default.num_images, default.tokens_per_image) == (8, 20)
    assert two.cache * 4 == default.cache and two.pixels * 4 == default.pixels
    assert two.pixels == 2 * 5 * 3 * model.side**2
    assert (two.tower, two.encoder) == (default.tower, default.encoder)
    assert flat.tokens_per_image == 12 and flat.cache * 5 == two.cache * 3


@pytest.mark.parametrize(
    "options", [{"limit_mm_per_prompt": {"image": 0}}, {"language_model_only": True}]
)
def test_without_images_there_is_no_need(model: TinyModel, options: dict[str, Any]) -> None:
    assert estimate(model.path, **options) is None


def load(path: Path, **options: Any) -> ModelExecutor:
    return ModelExecutor.from_checkpoint(
        open_checkpoint(path), config_of(**options), BACKENDS, no_progress, reads_images=True
    )


def config_of(**options: Any) -> EngineConfig:
    return EngineConfig.from_options(
        device="cpu", dtype="float32", num_gpu_blocks_override=8, **options
    )


def least(path: Path, **options: Any) -> int:
    """The smallest memory with which the model is not refused."""
    checkpoint, config = open_checkpoint(path), config_of(**options)
    spec = choose_spec(checkpoint, config, BACKENDS, no_progress)
    impl = NativeModels(ModelSpec(path=path, fields={}))
    keeping = keeping_of(config, BACKENDS, spec, impl, checkpoint)
    block_bytes = 2 * 2 * 16 * 2 * 16 * 4

    def fits(available: int) -> bool:
        try:
            refuse_too_large(
                [checkpoint], config, keeping, block_bytes, available, reads_images=True
            )
        except ConfigError:
            return False
        return True

    return bisect_left(range(1 << 24), True, key=fits)


def test_images_that_do_not_fit_are_refused_before_weights_are_read(
    model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, whole = estimate(model.path), least(model.path)
    text = least(model.path, language_model_only=True)
    assert images is not None and whole - text == images.total
    monkeypatch.setattr(memory_need, "available_memory", lambda device: whole)
    load(model.path).close()
    monkeypatch.setattr(memory_need, "available_memory", lambda device: whole - 1)
    load(model.path, language_model_only=True).close()
    load(model.path, limit_mm_per_prompt={"image": 7}).close()

    def fail(self: object, name: str) -> Any:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(SafetensorsFiles, "tensor", fail)
    with pytest.raises(ConfigError, match=r"GiB for images, but .*use --language-model-only"):
        load(model.path)
    monkeypatch.setattr(memory_need, "available_memory", lambda device: text - 1)
    with pytest.raises(ConfigError) as caught:
        load(model.path)
    assert "--language-model-only" not in str(caught.value)
