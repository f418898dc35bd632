"""`tokenmill bench`: measures a server, with the options and the fields of `vllm bench`."""

from __future__ import annotations

from typing import Any

from .compare import add_compare_parser
from .engine import add_latency_parser, add_throughput_parser
from .serve import add_serve_parser
from .startup import add_startup_parser
from .sweep import add_sweep_parser


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure a server under load, and compare two measurements",
        description="Measure any server with an OpenAI-compatible API. Options, lines and fields "
        "are those of `vllm bench`.",
        examples=(
            "tokenmill bench serve --num-prompts 100 --max-concurrency 8",
            "tokenmill bench startup",
            "tokenmill bench compare before.json after.json",
        ),
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    add_serve_parser(verbs)
    add_throughput_parser(verbs)
    add_latency_parser(verbs)
    add_startup_parser(verbs)
    add_sweep_parser(verbs)
    add_compare_parser(verbs)
