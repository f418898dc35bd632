"""Finds the GGUF model in a directory, which may hold all parts of a split model."""

from __future__ import annotations

from pathlib import Path

from ....core.errors import ConfigError
from ..gguf.parts import models_among

PROJECTOR = "mmproj"
"""Beginning of the name of llama.cpp's files with the vision part of a model."""


def gguf_in(directory: Path) -> Path | None:
    """Return a file of the only GGUF model in a directory; None if it holds another format.

    Raises ConfigError if the directory has several GGUF models.
    """
    models = gguf_models_in(directory)
    if not models or any(directory.glob("*.safetensors")):
        return None
    if len(models) > 1:
        names = ", ".join(model.name for model in models)
        raise ConfigError(f"{directory} has {len(models)} GGUF models: name one of {names}")
    return models[0]


def gguf_models_in(directory: Path) -> list[Path]:
    """Return one file of each GGUF model in a directory, without its subdirectories."""
    return models_among(
        path for path in directory.glob("*.gguf") if not path.name.startswith(PROJECTOR)
    )
