"""The files from which the vision part of a model is read, and their names of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from ...core.errors import ConfigError
from ...core.processes.channels.messages import encode
from ..weights.files.json_file import read_json
from ..weights.packed import StoredTensor

_FILES = ("preprocessor_config.json", "processor_config.json")
"""Files about images beside config.json; later ones take precedence."""
_PARTS = ("vision_model.", "connector.", "multi_modal_projector.", "visual.")
"""Beginnings of the names of the tower's tensors, in some files after `model.`."""
_TOWER = "vision_tower."
"""The beginning of names in Gemma 3 and Mistral 3. In older files, `vision_model.` follows."""


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


def image_fields(path: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """All fields about images in a directory: `fields`, which are those of config.json, and the
    fields of the files beside it. Raises ConfigError for a damaged file, and for values that cannot
    be sent to another process."""
    found = dict(fields)
    for name in _FILES:
        if (path / name).exists():
            found |= read_json(path / name)
    nested = found.get("image_processor")
    found = found | nested if isinstance(nested, dict) else found
    try:
        encode(found)
    except (OverflowError, ValueError, RecursionError) as error:
        raise ConfigError(f"config.json or {' or '.join(_FILES)} in {path}: {error}") from error
    return found


def tower_tensor(name: str) -> str | None:
    """The name that the tower uses for a tensor of a model; None: the tower does not have it."""
    bare = name.removeprefix("model.")
    if bare.startswith(_TOWER):
        return "vision_model." + bare.removeprefix(_TOWER).removeprefix("vision_model.")
    return bare if bare.startswith(_PARTS) else None
