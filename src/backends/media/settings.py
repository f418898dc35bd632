"""Settings that the processors of several models read from a model's files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...core.errors import ConfigError
from ...core.wording.suggest import near_and_known

_FILTERS = range(6)
"""Pillow's numbers of filters."""


def with_kwargs(
    config: Mapping[str, Any], kwargs: Mapping[str, Any], known: Collection[str]
) -> dict[str, Any]:
    """The fields of `config`, of the processor in it, and `kwargs`, which take precedence in this
    order. Raises ConfigError for kwargs that are not `known`, if that processor has no fields, and
    for images that would not become RGB of the size that the encoder needs."""
    for name in kwargs:
        if name not in known:
            raise ConfigError(
                f"--mm-processor-kwargs: there is no {name!r}{near_and_known(name, known)}"
            )
    processor = config.get("image_processor") or {}
    if not isinstance(processor, Mapping):
        raise ConfigError(f"image_processor must be an object, got {processor!r:.100}")
    given = {**config, **processor, **kwargs}
    for name in ("do_resize", "do_convert_rgb"):
        if given.get(name) is False:
            raise ConfigError(f"{name} is false, which is not supported")
    return given


def other_models(config: Mapping[str, Any], model_types: Collection[str]) -> list[str]:
    """The reason against a processor for `model_types`, if the model in `config` is of another
    type; else nothing."""
    kind = config.get("model_type")
    if kind in model_types:
        return []
    return [f"models of type {kind!r:.50} process images in another way"]


def part_of(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The fields of a part of config.json that are not null."""
    return {key: value for key, value in (config.get(name) or {}).items() if value is not None}


def read_filter(given: Mapping[str, Any], default: int) -> int:
    """Pillow's number of the filter for resizing. Raises ConfigError for another number."""
    value = given.get("resample")
    if value is None:
        return default
    if type(value) is not int or value not in _FILTERS:
        raise ConfigError(f"resample must be a filter's number from 0 to 5, got {value!r:.100}")
    return value


def read_text(given: Mapping[str, Any], name: str, default: str) -> str:
    """A field that is a text. Raises ConfigError for something else."""
    value = given.get(name) or default
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a text, got {value!r:.100}")
    return value
