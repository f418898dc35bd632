"""Reads the small JSON files of a Hugging Face directory. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ....core.errors import ConfigError
from ..config.fields import one_line
from .bounded import read_bounded


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raises ConfigError if that fails."""
    try:
        content = json.loads(read_bounded(path).decode("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return content
