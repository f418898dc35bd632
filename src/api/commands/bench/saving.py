"""Writes the figures of a measurement to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ....core.errors import ConfigError


def add_html_flag(parser: Any) -> None:
    parser.add_argument(
        "--html", type=Path, metavar="PATH", help="write a report with charts, as one HTML file"
    )


def save_text(path: Path, text: str) -> None:
    """Write a file. Raises ConfigError if that is not possible."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}") from error


def save_json(path: Path, fields: object) -> None:
    """Write plain data as JSON. Raises ConfigError if that is not possible."""
    save_text(path, json.dumps(fields, indent=4) + "\n")
