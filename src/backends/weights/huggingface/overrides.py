"""--hf-overrides: config.json with other values in some of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....core.errors import ConfigError
from ....core.wording.suggest import did_you_mean
from ..config.model_config import ModelConfig
from .config import from_hf_config

_TEXT = "text_config"
_ROPE = ("rope_scaling", "rope_parameters")
"""Names of one field, in transformers 4 and 5."""
_OF_ALL_ROPES = ("rope_theta", "partial_rotary_factor")
"""Numbers of a rotation that do not belong to its type."""
_REFUSED = {
    "quantization_config": "it describes the model's files",
    "compression_config": "it describes the model's files",
    "auto_map": "code from a model's folder is never run",
}
_NO_SIZES = ("dtype", "torch_dtype", "eos_token_id")
"""Fields that are read, but that ModelConfig does not show."""


def overridden(
    fields: Mapping[str, Any], overrides: Mapping[str, Any], source: str
) -> dict[str, Any]:
    """The fields of config.json with the overrides. Objects are merged; null counts as absent.

    `rope_scaling` and `rope_parameters` are one field, and a `rope_theta` replaces the one in it. A
    rotation of another type keeps only the numbers that every type has. Raises ConfigError for a
    field that must be as the files have it, and for one that config.json lacks and the native
    implementation does not read.
    """
    changes = _place_rope(fields, overrides)
    if isinstance(changes.get(_TEXT), Mapping) and isinstance(fields.get(_TEXT), Mapping):
        changes[_TEXT] = _place_rope(fields[_TEXT], changes[_TEXT])
    merged = _merge(fields, changes)
    _refuse_unread(fields, changes, merged, source)
    return merged


def _place_rope(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides, with those of the rotation where the file has it."""
    name = next((one for one in _ROPE if fields.get(one)), None)
    if name is None or not isinstance(fields[name], Mapping):
        return dict(overrides)
    changes = {name if key in _ROPE else key: value for key, value in overrides.items()}
    if "rope_theta" not in fields[name]:
        return changes
    if name in changes and changes[name] is None:
        changes[name] = {"rope_type": "default"}
    if "rope_theta" in changes:
        theta = {"rope_theta": changes.pop("rope_theta")}
        changes[name] = theta | dict(changes.get(name, {}))
    return changes


def _merge(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(fields)
    for key, value in changes.items():
        if key in _REFUSED:
            raise ConfigError(f"--hf-overrides must not set {key}: {_REFUSED[key]}")
        old = fields.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            is_other_rope = key in _ROPE and _kind(value) not in (None, _kind(old))
            kept = {name: old[name] for name in _OF_ALL_ROPES if name in old}
            value = _merge(kept if is_other_rope else old, value)
        merged[key] = value
    return merged


def _kind(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type") or rope.get("type")


def _refuse_unread(
    fields: Mapping[str, Any],
    changes: Mapping[str, Any],
    merged: Mapping[str, Any],
    source: str,
) -> None:
    """Raise ConfigError for a new field without which the model is read as the same."""
    sizes = _sizes(merged)
    if sizes is None:  # the implementation that is chosen says what is wrong, or reads more
        return
    text, file_text = merged.get(_TEXT), fields.get(_TEXT)
    for key in changes:
        if key != _TEXT and key not in fields and _sizes(_without(merged, key)) == sizes:
            raise _unread(key, fields, source)
    if isinstance(text, Mapping) and isinstance(file_text, Mapping):
        for key in changes.get(_TEXT) or ():
            less = {**merged, _TEXT: _without(text, key)}
            if key not in file_text and _sizes(less) == sizes:
                raise _unread(key, file_text, f"{_TEXT} in {source}")


def _sizes(fields: Mapping[str, Any]) -> tuple[ModelConfig, list[Any]] | None:
    """The result of reading the fields; None if the native implementation refuses them."""
    try:
        return from_hf_config(fields), [fields.get(name) for name in _NO_SIZES]
    except ConfigError:
        return None


def _without(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


def _unread(key: str, fields: Mapping[str, Any], source: str) -> ConfigError:
    parts = (name for name, part in fields.items() if isinstance(part, Mapping) and key in part)
    part = next(parts, None)
    hint = f'. It belongs into {part}: {{"{part}": {{"{key}": ...}}}}' if part else ""
    return ConfigError(
        f"--hf-overrides sets {key!r}, which {source} lacks and the engine does not read"
        f"{hint or did_you_mean(key, fields)}"
    )
