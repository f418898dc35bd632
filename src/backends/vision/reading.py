"""Decides whether a model reads images here, and loads what it needs for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigError
from ...core.interfaces import MediaInfo
from ...core.log import get_logger
from ..attention.base import AttentionBackend
from ..linear.base import LinearBackend
from ..weights.checkpoint import Checkpoint
from ..weights.checkpoint_decorator import as_stored
from ..weights.files.safetensors_files import SafetensorsFiles
from ..weights.gguf.checkpoint import GGUFCheckpoint
from ..weights.huggingface.checkpoint import SafetensorsCheckpoint
from ..weights.huggingface.multimodal import has_known_tower, is_multimodal
from .base import LargestImage, Tower, TowerPlan
from .mmproj import find_mmproj, read_mmproj
from .pixtral.plan import read_pixtral
from .siglip.plan import read_siglip
from .source import NoVision, VisionSource, image_fields, tower_tensor
from .wrapped.plan import WrappedPlan, read_wrapped

log = get_logger("model")

PLANS: Mapping[str, Callable[[Mapping[str, Any], str], TowerPlan]] = {
    "gemma3": read_siglip,
    "idefics3": read_siglip,
    "mistral3": read_pixtral,
    "qwen2_5_vl": read_wrapped,
    "smolvlm": read_siglip,
}
"""By model type, the function that reads a plan. Its arguments are the fields of VisionSource, and
the file that errors name. It raises ConfigError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """The tower of a model, and what the engine must know about its images."""

    tower: Tower
    info: MediaInfo
    encoder_bytes: int
    """Estimated memory for one run of the tower, with all images that the device encodes at
    once."""
    is_wrapped: bool = False
    """Whether transformers computes the tower. Then the start checks a prompt with an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundVision:
    """A tower that is not loaded yet, and what the engine must know about its images."""

    source: VisionSource
    plan: TowerPlan
    info: MediaInfo
    largest: LargestImage
    dtype: torch.dtype

    def encoder_bytes(self, device: torch.device) -> int:
        """Estimate the memory for one run of the tower, with all images that the device encodes at
        once."""
        one = self.plan.config.run_bytes(*self.largest.run_shape, self.dtype.itemsize)
        return one * self.plan.images_at_once(device)


def load_vision(
    checkpoint: Checkpoint,
    config: EngineConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    linear: LinearBackend,
    attention: type[AttentionBackend] | None = None,
) -> Vision | None:
    """Load the vision tower. None: the model has none, or serves only text here; the log says why.
    Stages of a model after the first one need none. `linear` and `attention`: see TowerPlan.load.

    Raises ConfigError for a damaged tower, or one that cannot be computed.
    """
    if not checkpoint.config.has_embedding:
        return None
    try:
        found = _find(checkpoint, config, dtype)
    except NoVision as reason:
        log.info("only_text_model_used", path=str(checkpoint.path), reason=str(reason))
        return None
    if found is None:
        return None
    files = found.source.files
    tower = found.plan.load(files, dtype=dtype, device=device, linear=linear, attention=attention)
    files.release()
    log.info("vision_tower_loaded", weights_mib=tower.num_bytes >> 20)
    return Vision(
        tower=tower,
        info=found.info,
        encoder_bytes=found.encoder_bytes(device),
        is_wrapped=isinstance(found.plan, WrappedPlan),
    )


def sees_ahead(checkpoint: Checkpoint, config: EngineConfig) -> bool:
    """Whether a model reads images whose tokens see each other, in any stage of it. Raises
    ConfigError as `load_vision` does."""
    found = find_vision(checkpoint, config, torch.float32)
    return found is not None and found.info.largest_span_tokens > 0


def find_vision(
    checkpoint: Checkpoint, config: EngineConfig, dtype: torch.dtype
) -> FoundVision | None:
    """Describe the tower that `load_vision` would load, without its weights. Raises ConfigError as
    that does."""
    try:
        return _find(checkpoint, config, dtype)
    except NoVision:
        return None


def _find(checkpoint: Checkpoint, config: EngineConfig, dtype: torch.dtype) -> FoundVision | None:
    source = _find_source(as_stored(checkpoint), config)
    if source is None:
        return None
    kind = str(source.fields.get("model_type"))
    plan = PLANS.get(kind, read_siglip)(source.fields, source.source)
    return _describe(source, plan, config, dtype)


def _find_source(stored: Checkpoint, config: EngineConfig) -> VisionSource | None:
    """The files of the vision part; None: the model has none.

    Raises NoVision if they are not used.
    """
    if isinstance(stored, GGUFCheckpoint):
        path = find_mmproj(stored.path, config.mmproj)
        if path is None:
            return None
        _check_settings(config)
        return _read_mmproj(path, stored, config)
    if config.mmproj is not None:
        raise ConfigError("--mmproj is for GGUF models: a directory has its vision part itself")
    if not isinstance(stored, SafetensorsCheckpoint) or not is_multimodal(stored.fields):
        return None
    _check_settings(config)
    if not has_known_tower(stored.fields):
        return None  # the checkpoint has logged it
    if stored.is_made:
        raise NoVision("--load-format dummy makes no vision tower")
    return VisionSource(
        fields=image_fields(stored.path, stored.fields),
        files=SafetensorsFiles(stored.path, tower_tensor),
        source=str(stored.path / "config.json"),
    )


def _read_mmproj(path: Path, stored: GGUFCheckpoint, config: EngineConfig) -> VisionSource:
    try:
        return read_mmproj(path, stored)
    except NoVision as reason:
        if config.mmproj is None:
            raise
        raise ConfigError(f"--mmproj: {reason}") from reason


def _check_settings(config: EngineConfig) -> None:
    if not config.image_limit.count:
        raise NoVision("--language-model-only, or --limit-mm-per-prompt allows no images")


def _describe(
    source: VisionSource, plan: TowerPlan, config: EngineConfig, dtype: torch.dtype
) -> FoundVision:
    kwargs, limit = config.mm_processor_kwargs or {}, config.image_limit
    assert not isinstance(kwargs, str), "EngineConfig has read it"
    largest = plan.largest_image(source.fields, kwargs, limit.width, limit.height)
    bytes_per_token = plan.config.text_hidden_size * dtype.itemsize
    info = MediaInfo(
        config=source.fields,
        placeholder_token_id=plan.config.image_token_id,
        shown_token_id=plan.config.shown_token_id,
        bytes_per_token=bytes_per_token,
        cache_bytes=limit.count * largest.num_tokens * bytes_per_token,
        largest_span_tokens=largest.span_tokens,
    )
    return FoundVision(source=source, plan=plan, info=info, largest=largest, dtype=dtype)
