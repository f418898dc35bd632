"""Finds the model that a path means, and the GGUF model in a directory, which may hold all parts of
a split model. Imports no torch: the server's own process uses it."""

from __future__ import annotations

from pathlib import Path

from ....core.errors import ConfigError
from ..gguf.parts import models_among

SUPPORTED = (
    "a Hugging Face directory (config.json and *.safetensors) or a .gguf file; "
    "to fetch one: hf download OWNER/NAME --local-dir DIR"
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
PROJECTOR = "mmproj"
"""Beginning of the name of llama.cpp's files with the vision part of a model."""


def find_model(path: Path) -> Path:
    """Return the Hugging Face directory, or a file of the GGUF model, that a path means.

    Raises ConfigError for anything else.
    """
    path = path.expanduser()
    path = (path.is_dir() and gguf_in(path)) or path
    if path.is_dir():
        _check_directory(path)
    else:
        _check_file(path)
    return path


def _check_directory(path: Path) -> None:
    if (path / "config.json").exists():
        return
    found = f"no model in {path}: it has no config.json"
    if models := gguf_models_in(path):  # among *.safetensors, which belong to no model either
        names = ", ".join(model.name for model in models)
        raise ConfigError(f"{found}. Name one of its GGUF files: {names}")
    raise ConfigError(f"{found} and no .gguf file. Supported: {SUPPORTED}")


def _check_file(path: Path) -> None:
    if not path.exists():
        raise ConfigError(f"no model at {path}: no such file or directory. Supported: {SUPPORTED}")
    if path.suffix != ".gguf" and path.is_file() and _is_gguf(path):
        raise ConfigError(f"{path} is a GGUF file: give it a name that ends in .gguf")
    if path.suffix in _PICKLES:
        raise ConfigError(
            f"{path} is a pickle, which can run any program when it is loaded, so it is not "
            f"opened. Supported: {SUPPORTED}"
        )
    if path.suffix == ".safetensors":
        raise ConfigError(
            f"{path} holds only weights: name its directory, which has config.json, instead"
        )
    if path.suffix != ".gguf":
        raise ConfigError(f"{path} is not a model in a known format. Supported: {SUPPORTED}")


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:  # or the file may not be read
        return False


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
