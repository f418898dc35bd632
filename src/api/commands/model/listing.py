"""`tokenmill model list`: the models on this machine, with their sizes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..printing import new_table, print_json, print_table, size_text


def add_parser(verbs: Any) -> None:
    """Register the verb `list` of `tokenmill model`."""
    listing = verbs.add_parser(
        "list",
        help="list the models on this machine, with their sizes",
        description="List the default model, the models in the Hugging Face cache, the copies that "
        "--quantize-on-load has kept, and the draft models that `tokenmill draft make` has made. "
        "`tokenmill serve` takes the names of models, --speculative-model those of drafts. A "
        "quantized copy is used at the next start with the same model and --quantize-on-load.",
        examples=("tokenmill model list --json",),
    )
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_list)


def _list(args: argparse.Namespace) -> int:
    from ....assembly import list_local_models

    models = list_local_models()
    if args.json:
        print_json(models)
    elif models:
        _print(models)
    else:
        print("no model is here: `tokenmill model fetch` installs the default model")
    return 0


def _print(models: Sequence[Any]) -> None:
    table = new_table("NAME", "KIND", "FORMAT", "SIZE", right=("SIZE",))
    for one in models:
        format = one.format if one.is_complete else "incomplete"
        table.add_row(one.name, one.kind, format, size_text(one.num_bytes))
    print_table(table)
