"""Prints results: tables and sizes for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

import msgspec

UNLIMITED = 10_000
"""Columns of a table that is not shown on a terminal."""


def print_json(value: object) -> None:
    """Print plain data as indented JSON."""
    print(msgspec.json.format(msgspec.json.encode(value)).decode())


def new_table(*columns: str, right: Collection[str] = ()) -> Any:
    """An empty table. `right`: the columns that are justified right."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def print_table(table: Any, width: int | None = None) -> None:
    """Print it as wide as the terminal, or `width` columns wide and without trailing blanks."""
    from rich.console import Console

    if sys.stdout.isatty():
        Console(markup=False).print(table)
        return
    console = Console(width=width or UNLIMITED, markup=False)
    with console.capture() as printed:
        console.print(table)
    print("\n".join(line.rstrip() for line in printed.get().splitlines()))


def size_text(num_bytes: int) -> str:
    """Return a size in the largest unit that fits, for example "1.5 GiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} bytes"
