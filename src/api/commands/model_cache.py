"""`tokenmill model cache`: lists and removes the models that --quantize-on-load has kept."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import msgspec

from .sizes import size_text

UNLIMITED = 10_000
"""Columns of a table that is not shown on a terminal."""


def add_parser(verbs: Any) -> None:
    """Register the verb `cache` of `tokenmill model`."""
    cache = verbs.add_parser(
        "cache",
        help="list or remove the models that --quantize-on-load has kept",
        description="--quantize-on-load keeps quantized models in $XDG_CACHE_HOME/tokenmill/models "
        "(default: ~/.cache/tokenmill/models), within --model-cache-size.",
        examples=("tokenmill model cache list",),
    )
    actions = cache.add_subparsers(dest="action", metavar="ACTION")
    listing = actions.add_parser(
        "list",
        help="list the models, the last used one last",
        examples=("tokenmill model cache list --json",),
    )
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_list)
    remove = actions.add_parser(
        "remove",
        help="remove models; running engines keep them",
        examples=("tokenmill model cache remove NAME",),
    )
    remove.add_argument("names", nargs="+", metavar="NAME", help="name in the list")
    remove.set_defaults(run=_remove)
    clear = actions.add_parser(
        "clear", help="remove all models", examples=("tokenmill model cache clear",)
    )
    clear.set_defaults(run=_clear)


def _list(args: argparse.Namespace) -> int:
    from ...assembly import list_cached_models

    models = list_cached_models()
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(models)).decode())
    elif models:
        _print_table(models)
    else:
        print("no model is cached")
    return 0


def _print_table(models: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("NAME", "KIND", "SIZE", "LAST USED", "MODEL"):
        table.add_column(column, justify="right" if column == "SIZE" else "left", overflow="fold")
    for one in models:
        used = one.last_used.astimezone().strftime("%Y-%m-%d %H:%M")
        size = size_text(one.num_bytes)
        table.add_row(one.name, one.kind or "-", size, used, one.model or "the file is damaged")
    Console(width=None if sys.stdout.isatty() else UNLIMITED).print(table)


def _remove(args: argparse.Namespace) -> int:
    from ...assembly import remove_cached_models

    remove_cached_models(args.names)
    return 0


def _clear(args: argparse.Namespace) -> int:
    from ...assembly import remove_cached_models

    remove_cached_models(None)
    return 0
