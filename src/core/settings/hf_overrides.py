"""Fields of a model's config.json that the operator sets, as in vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import ConfigError
from .checking import read_object

_FLAG, _EXAMPLE = "--hf-overrides", '{"rope_parameters": {"rope_theta": 1000000}}'


def read_hf_overrides(given: str | Mapping[str, object]) -> dict[str, Any] | None:
    """The fields in JSON text or a mapping; None if there are none. Raises ConfigError."""
    if callable(given):
        raise ConfigError(
            f"{_FLAG} must be an object, not a function, which the engine's processes cannot share"
        )
    try:  # as another process gets it
        plain: Any = msgspec.json.decode(msgspec.json.encode(read_object(_FLAG, given, _EXAMPLE)))
    except TypeError as error:
        raise ConfigError(f"{_FLAG} has a value that JSON does not have: {error}") from error
    return plain or None
