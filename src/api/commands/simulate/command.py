"""`tokenmill simulate`: run the engine without hardware, in virtual time."""

from __future__ import annotations

from typing import Any

from .compare import add_compare_parser
from .fleet.command import add_fleet_parser
from .measure import add_measure_parser
from .seeds import add_seeds_parser


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "simulate",
        help="compare policies in virtual time, or test the engine with random faults",
        description="Run the real engine and plugins on a simulated clock, without a model.",
        examples=(
            "tokenmill simulate compare",
            "tokenmill simulate fleet",
            "tokenmill simulate seeds --count 20",
        ),
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    add_compare_parser(verbs)
    add_fleet_parser(verbs)
    add_measure_parser(verbs)
    add_seeds_parser(verbs)
