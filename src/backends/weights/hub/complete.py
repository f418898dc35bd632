"""Whether the hub's cache has all files of a model, so that the hub need not be asked."""

from __future__ import annotations

from pathlib import Path

from ....core.errors import ConfigError
from ..files.weight_files import INDEX, SINGLE, shards_in
from ..gguf.parts import all_parts
from .name import HubName, files_in

_TOKENIZERS = ("tokenizer.json", "tokenizer.model")


def is_complete(snapshot: Path, name: HubName) -> bool:
    """Whether a snapshot has the weights that a name means, and the other files that a model needs.

    Files that a model may lack, such as a chat template, are not missed: a download fetches them
    before the weights.
    """
    try:
        if name.is_whole and any(snapshot.glob("*.safetensors*")):
            return _has_directory(snapshot)
        first = snapshot / name.choose_one(files_in(snapshot), name.repo)
        return all(part.exists() for part in all_parts(first))
    except ConfigError:  # for example an index that is damaged
        return False


def _has_directory(snapshot: Path) -> bool:
    weights = shards_in(snapshot / INDEX) if (snapshot / INDEX).exists() else [SINGLE]
    needed = ("config.json", *weights)
    has_tokenizer = any((snapshot / file).exists() for file in _TOKENIZERS)
    return has_tokenizer and all((snapshot / file).exists() for file in needed)
