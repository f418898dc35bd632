"""Decides whether a model reads images here, and loads what it needs for that."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...core.config import EngineConfig
from ...core.interfaces import MediaInfo
from ...core.log import get_logger
from ..linear.base import LinearBackend
from ..media.idefics3.processor import Idefics3Processor
from ..weights.checkpoint import Checkpoint
from ..weights.checkpoint_decorator import as_stored
from ..weights.files.safetensors_files import SafetensorsFiles
from ..weights.huggingface.checkpoint import SafetensorsCheckpoint
from ..weights.huggingface.multimodal import is_multimodal
from .config import TowerConfig, image_fields, is_known, read_tower_config
from .loading import load_tower, tower_tensor
from .tower import VisionTower

log = get_logger("model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """The tower of a model, and what the engine must know about its images."""

    tower: VisionTower
    info: MediaInfo


def load_vision(
    checkpoint: Checkpoint,
    config: EngineConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    linear: LinearBackend,
) -> Vision | None:
    """Load the vision tower. None: the model has none, or serves only text here; the log says why.

    Raises ConfigError for a damaged tower, or one that cannot be computed.
    """
    stored = as_stored(checkpoint)
    if not isinstance(stored, SafetensorsCheckpoint) or not is_multimodal(stored.fields):
        return None
    if (reason := _reason_against(stored, config)) is not None:
        log.info("only_text_model_used", path=str(stored.path), reason=reason)
        return None
    fields = image_fields(stored.path, stored.fields)
    sizes = read_tower_config(fields, str(stored.path / "config.json"))
    files = SafetensorsFiles(stored.path, tower_tensor)
    tower = load_tower(files, sizes, dtype=dtype, device=device, linear=linear)
    files.release()
    log.info("vision_tower_loaded", weights_mib=tower.num_bytes >> 20)
    return Vision(tower=tower, info=_describe(fields, sizes, config, dtype))


def _reason_against(stored: SafetensorsCheckpoint, config: EngineConfig) -> str | None:
    if not config.image_limit.count:
        return "--language-model-only, or --limit-mm-per-prompt allows no images"
    if not is_known(stored.fields):
        return "images of this architecture are not supported"
    if stored.is_made:
        return "--load-format dummy makes no vision tower"
    if config.num_ranks > 1:
        return "images need a model that is computed by one process"
    return None


def _describe(
    fields: dict[str, object], sizes: TowerConfig, config: EngineConfig, dtype: torch.dtype
) -> MediaInfo:
    kwargs = config.mm_processor_kwargs or {}
    assert not isinstance(kwargs, str), "EngineConfig has read it"
    processor, limit = Idefics3Processor(fields, kwargs), config.image_limit
    largest = processor.num_tokens(limit.width or _HUGE, limit.height or _HUGE)
    bytes_per_token = sizes.text_hidden_size * dtype.itemsize
    return MediaInfo(
        processor=processor.name,
        config=fields,
        placeholder_token_id=sizes.image_token_id,
        bytes_per_token=bytes_per_token,
        cache_bytes=limit.count * largest * bytes_per_token,
    )


_HUGE = 1 << 14
"""Pixels. A square of this size has the most tiles that the processor makes."""
