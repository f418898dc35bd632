"""Lists all models on this machine that tokenmill knows."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import ConfigError
from .config.model_config import DRAFT_HEAD
from .default_model import find_default_model
from .draft_record import recorded_drafts
from .files.json_file import read_json
from .hub.listing import list_hub_models
from .local_model import DEFAULT, DRAFT, QUANTIZED, LocalModel
from .quantized_cache.folder import list_models, models_folder


def list_local_models() -> list[LocalModel]:
    """The default model, the hub's cache, quantized copies, and drafts that were made here."""
    quantized = [
        LocalModel(
            name=one.name,
            kind=QUANTIZED,
            format=one.kind or "damaged",
            num_bytes=one.num_bytes,
            path=str(models_folder() / f"{one.name}.safetensors"),
        )
        for one in list_models()
    ]
    return [*_default(), *list_hub_models(), *quantized, *map(_draft, recorded_drafts())]


def _default() -> list[LocalModel]:
    try:
        path = find_default_model()
    except ConfigError:  # it is not installed
        return []
    name = path.stem.partition(".")[0]
    size = path.stat().st_size
    return [LocalModel(name=name, kind=DEFAULT, format="gguf", num_bytes=size, path=str(path))]


def _draft(folder: Path) -> LocalModel:
    file = folder / "model.safetensors"
    try:
        fields = read_json(folder / "config.json")
        is_head = fields.get("model_type") == DRAFT_HEAD
        format = "head" if is_head else f"{fields.get('num_hidden_layers')}-layer"
    except ConfigError:
        format = "damaged"
    size = file.stat().st_size
    return LocalModel(name=str(folder), kind=DRAFT, format=format, num_bytes=size, path=str(folder))
