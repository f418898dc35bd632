"""The names of the files with weights in a Hugging Face directory. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ....core.errors import ConfigError
from .json_file import read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def weight_files(path: Path) -> list[str]:
    """Return the names of the files with weights: the ones in the index, or the only one.

    Raises ConfigError if there are none.
    """
    if (path / INDEX).exists():
        return shards_in(path / INDEX)
    if (path / SINGLE).exists():
        return [SINGLE]
    text = f"no weights in {path}: looked for {SINGLE} and {INDEX}"
    if any(path.glob("*.bin")) or any(path.glob("*.pt*")):
        text += (
            "; its .bin or .pt files are pickles, which can run any program when they are loaded: "
            "convert them to safetensors"
        )
    raise ConfigError(text)


def shards_in(index: Path) -> list[str]:
    """Return the names of the files that an index lists. Raises ConfigError if it is damaged."""
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise ConfigError(f"{index} must have a weight_map")
    return sorted({_plain_name(index, file) for file in listed.values()})


def _plain_name(index: Path, file: Any) -> str:
    if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
        raise ConfigError(f"{index} names {file!r:.80}, not a safetensors file in its directory")
    return file
