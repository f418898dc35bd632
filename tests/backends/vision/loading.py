"""Loads the vision tower of a model on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tokenmill.backends.attention.base import AttentionBackend
from tokenmill.backends.linear.base import LinearBackend, LinearSpec
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.vision.reading import Vision, load_vision
from tokenmill.backends.vision.siglip.tower import VisionTower
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.core.config import EngineConfig


def load(
    path: Path,
    dtype: torch.dtype = torch.float32,
    linear: type[LinearBackend] = TorchLinear,
    attention: type[AttentionBackend] | None = None,
    **options: Any,
) -> Vision | None:
    """The tower of the model at `path`. `options`: those of EngineConfig."""
    spec = LinearSpec(dtype=dtype, device=torch.device("cpu"))
    config = EngineConfig.from_options(**options)
    return load_vision(
        open_checkpoint(path),
        config,
        dtype=dtype,
        device=spec.device,
        linear=linear(spec),
        attention=attention,
    )


def siglip(vision: Vision | None) -> VisionTower:
    """Its tower, which is of this kind."""
    assert vision is not None and isinstance(vision.tower, VisionTower)
    return vision.tower
