"""Prints a result for programs."""

from __future__ import annotations

import msgspec


def print_json(value: object) -> None:
    """Print plain data as indented JSON."""
    print(msgspec.json.format(msgspec.json.encode(value)).decode())
