"""`tokenmill model cache`: lists and removes the models that --quantize-on-load has kept."""

from __future__ import annotations

import argparse
from typing import Any

from ..printing import new_table, print_json, print_table, size_text


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
        help="list the models, the least recently used first",
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
    clear.set_defaults(run=_remove, names=None)


def _list(args: argparse.Namespace) -> int:
    from ....assembly import list_cached_models

    models = list_cached_models()
    if args.json:
        print_json(models)
    elif models:
        _print(models)
    else:
        print("no model is cached")
    return 0


def _print(models: list[Any]) -> None:
    table = new_table("NAME", "KIND", "SIZE", "LAST USED", "MODEL", right=("SIZE",))
    for one in models:
        used = one.last_used.astimezone().strftime("%Y-%m-%d %H:%M")
        size = size_text(one.num_bytes)
        table.add_row(one.name, one.kind or "-", size, used, one.model or "the file is damaged")
    print_table(table)


def _remove(args: argparse.Namespace) -> int:
    from ....assembly import remove_cached_models

    remove_cached_models(args.names)
    return 0
