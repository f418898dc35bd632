"""`tokenmill doctor`: what this machine has, what that costs, and what to do."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any

from .printing import print_json, print_table

if TYPE_CHECKING:
    from ...doctor.finding import Finding

_COLORS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}
_STATE_WIDTH, _NAME_WIDTH = len("warning"), len("temporary files")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="examine this machine: what is there, what it costs, what to do",
        description="Examine CPU, compiler, memory, threads, limits of containers, GPUs, packages, "
        "plugins and settings. Nothing is changed. The exit status is 1 if a problem prevents a "
        "start.",
        examples=("tokenmill doctor", "tokenmill doctor --json"),
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from ...doctor.examination import examine

    states: Counter[str] = Counter()
    findings = []
    for finding in examine():
        states[finding.state] += 1
        if args.json:
            findings.append(finding)
        else:
            _print(finding)
    if args.json:
        print_json(findings)
    else:
        print(
            f"\n{_counted(states['problem'], 'problem')}, {_counted(states['warning'], 'warning')}"
        )
    return int(states["problem"] > 0)


def _print(finding: Finding) -> None:
    """Print a finding when it is made: some take a second."""
    from rich.table import Table

    row = Table.grid(padding=(0, 1))
    row.add_column(width=_STATE_WIDTH, style=_COLORS[finding.state])
    row.add_column(width=_NAME_WIDTH, style="bold")
    row.add_column(overflow="fold")
    row.add_row(finding.state, finding.name, _literal(finding.found))
    for label, text in (("cost", finding.cost), ("do", finding.advice)):
        if text:
            row.add_row("", "", _literal(f"{label}: {text}"))
    print_table(row)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _literal(text: str) -> Any:
    """A text in which brackets are no markup."""
    from rich.text import Text

    return Text(text)
