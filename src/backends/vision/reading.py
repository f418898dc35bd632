"""Decides whether a model reads images here, and loads what it needs for that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigError
from ...core.interfaces import MediaInfo
from ...core.log import get_logger
from ..attention.base import AttentionBackend
from ..linear.base import LinearBackend
from ..media.gemma3.processor import Gemma3Processor
from ..media.idefics3.processor import Idefics3Processor
from ..weights.checkpoint import Checkpoint
from ..weights.checkpoint_decorator import as_stored
from ..weights.files.safetensors_files import SafetensorsFiles
from ..weights.gguf.checkpoint import GGUFCheckpoint
from ..weights.huggingface.checkpoint import SafetensorsCheckpoint
from ..weights.huggingface.multimodal import has_known_tower, is_multimodal
from .config import TowerConfig, image_fields, read_tower_config
from .loading import load_tower, tower_tensor
from .mmproj import find_mmproj, read_mmproj
from .source import NoVision, VisionSource
from .tower import VisionTower, images_at_once

log = get_logger("model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """The tower of a model, and what the engine must know about its images."""

    tower: VisionTower
    info: MediaInfo
    encoder_bytes: int
    """Estimated memory for one run of the tower, with all images that the device encodes at
    once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundVision:
    """A tower that is not loaded yet, and what the engine must know about its images."""

    source: VisionSource
    sizes: TowerConfig
    info: MediaInfo
    tile: int
    """Sides of what one run of the tower encodes, in pixels."""
    tokens_per_tile: int
    encoder_bytes: int
    """Estimated memory for one run of the tower, with one image."""


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
    Stages of a model after the first one need none. `linear` and `attention`: see `load_tower`.

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
    tower = load_tower(
        files, found.sizes, dtype=dtype, device=device, linear=linear, attention=attention
    )
    files.release()
    log.info("vision_tower_loaded", weights_mib=tower.num_bytes >> 20)
    return Vision(
        tower=tower, info=found.info, encoder_bytes=found.encoder_bytes * images_at_once(device)
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
    sizes = read_tower_config(source.fields, source.source)
    return _describe(source, sizes, config, dtype)


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
    source: VisionSource, sizes: TowerConfig, config: EngineConfig, dtype: torch.dtype
) -> FoundVision:
    kwargs = config.mm_processor_kwargs or {}
    assert not isinstance(kwargs, str), "EngineConfig has read it"
    made = Gemma3Processor if sizes.pools else Idefics3Processor
    processor, limit = made(source.fields, kwargs), config.image_limit
    largest = processor.num_tokens(limit.width or _HUGE, limit.height or _HUGE)
    bytes_per_token = sizes.text_hidden_size * dtype.itemsize
    info = MediaInfo(
        config=source.fields,
        placeholder_token_id=sizes.image_token_id,
        shown_token_id=sizes.shown_token_id,
        bytes_per_token=bytes_per_token,
        cache_bytes=limit.count * largest * bytes_per_token,
        largest_span_tokens=processor.tokens_per_item if sizes.pools else 0,
    )
    return FoundVision(
        source=source,
        sizes=sizes,
        info=info,
        tile=processor.side,
        tokens_per_tile=processor.tokens_per_item,
        encoder_bytes=sizes.run_bytes(processor.side, dtype.itemsize),
    )


_HUGE = 1 << 14
"""Pixels. A square of this size has the most tiles that the processor makes."""
