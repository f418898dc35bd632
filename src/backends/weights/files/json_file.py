"""Reads the small JSON files of a Hugging Face directory. Imports no torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ....core.errors import ConfigError
from ..config.fields import one_line
from .bounded import read_bounded

_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raises ConfigError if that fails."""
    try:
        content = json.loads(read_bounded(path).decode("utf-8"), object_hook=_decode_float)
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return content


def _decode_float(object: dict[str, Any]) -> Any:
    """Turn {"__float__": "Infinity"} into a number, as transformers does: JSON has no such one."""
    tag = object.get("__float__") if len(object) == 1 else None
    return _FLOATS.get(tag, object) if isinstance(tag, str) else object
