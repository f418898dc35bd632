"""Tables on standard output."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

UNLIMITED = 10_000
"""Columns of a table that is not shown on a terminal."""


def new_table(*columns: str, right: Collection[str] = ()) -> Any:
    """An empty table. `right`: the columns that are justified right."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def print_table(table: Any) -> None:
    """Print it as wide as the terminal, or without breaks if it is no terminal."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else UNLIMITED).print(table)
