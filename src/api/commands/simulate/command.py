"""`tokenmill simulate`: what an engine would do, without hardware."""

from __future__ import annotations

from typing import Any

from .compare import add_compare_parser
from .measure import add_measure_parser
from .seeds import add_seeds_parser


def add_parser(subparsers: Any) -> None:
    """Register the command and its verbs."""
    parser = subparsers.add_parser(
        "simulate",
        help="compare policies in virtual time, and test the engine under faults",
        description="The shipped engine on a simulated clock: what a workload would see of it.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    add_compare_parser(verbs)
    add_measure_parser(verbs)
    add_seeds_parser(verbs)
