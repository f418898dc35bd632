"""`tokenmill bench compare`: says which of two results of `bench serve` is faster."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..printing import print_json, print_table
from .saving import add_html_flag, save_text


def add_compare_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "compare",
        help="say which of two results is faster",
        description="Compare the median times of single requests. A difference counts if the "
        "spread between requests does not explain it.",
        examples=("tokenmill bench compare before.json after.json",),
    )
    for name, which in (("first", "the first result"), ("second", "the result to judge")):
        parser.add_argument(
            name, type=Path, metavar="PATH", help=f"{which}, of --save-result --save-detailed"
        )
    add_html_flag(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from ....bench.reports.comparing import compare, load_differences, read_result

    first, second = read_result(args.first), read_result(args.second)
    found = list(compare(first, second))
    warning = ""
    if differences := "; ".join(load_differences(first, second)):
        warning = (
            f"the loads differ, so the verdicts are not about the servers alone: {differences}"
        )
        print(f"warning: {warning}", file=sys.stderr)
    if args.html is not None:
        from ....bench.reports.page import compare_page

        save_text(args.html, compare_page(found, args.first.stem, args.second.stem, warning))
    if args.json:
        print_json([{**asdict(one), "verdict": one.verdict} for one in found])
        return 0
    from rich.table import Table

    table = Table("time", "first (ms)", "second (ms)", "ratio", "95 %", "second is", box=None)
    for one in found:
        interval = f"{one.low:.3f} to {one.high:.3f}"
        figures = (f"{one.first:.2f}", f"{one.second:.2f}", f"{one.ratio:.3f}", interval)
        table.add_row(one.name, *figures, one.verdict)
    print_table(table)
    return 0
