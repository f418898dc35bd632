"""Checks the value of one setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field
from typing import Any

import msgspec

from ..errors import ConfigError
from ..wording.suggest import did_you_mean
from .declaration import flag


def check_value(setting: Field[Any], value: object) -> None:
    """Raise ConfigError for a value that its declaration does not allow. None: see EngineConfig."""
    if value is None and setting.default is None:
        return
    if bounds := setting.metadata.get("between"):
        _check_between(flag(setting.name), value, *bounds)
    if known := setting.metadata.get("one_of"):
        _check_one_of(flag(setting.name), value, known)


def _check_between(name: str, value: object, minimum: int, maximum: int) -> None:
    if not isinstance(value, (int, float)):
        raise ConfigError(f"{name} must be a number, got {value!r}")
    if not minimum <= value <= maximum:
        raise ConfigError(f"{name} must be between {minimum} and {maximum}, got {value}")


def _check_one_of(name: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        texts = [str(one) for one in known]
        near = did_you_mean(value, texts) if isinstance(value, str) else ""
        raise ConfigError(f"{name} must be one of {', '.join(texts)}, got {value!r}{near}")


def read_object(name: str, given: str | Mapping[str, object], example: str) -> dict[str, Any]:
    """A flag's object, which may be JSON text. Raises ConfigError with the example."""
    try:
        found = msgspec.json.decode(given) if isinstance(given, str) else dict(given)
    except (msgspec.DecodeError, UnicodeError, TypeError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{name} must be a JSON object, such as '{example}'")
    return found
