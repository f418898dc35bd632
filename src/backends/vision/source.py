"""The files from which the vision part of a model is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from ..weights.packed import StoredTensor


class NoVision(Exception):
    """The reason why a model serves only text here."""


class TowerFiles(Protocol):
    """The tensors of a vision part, by the names of `tower_tensor`."""

    path: Path

    def stored(self, name: str) -> StoredTensor:
        """Describe a tensor. Raises ConfigError if it is missing."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """Read a tensor. Raises ConfigError if it is damaged."""
        ...

    def release(self) -> None:
        """Let go of mapped files."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSource:
    """All that a model's files say about images, and the tensors of its tower."""

    fields: Mapping[str, Any]
    """The fields of `image_fields`."""
    files: TowerFiles
    source: str
    """The file that errors name."""
