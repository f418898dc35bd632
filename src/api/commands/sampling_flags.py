"""Sampling flags of `generate` and `chat`; None means the model's own default."""

from __future__ import annotations

import argparse
from typing import Any

_FLAGS: tuple[tuple[str, type, str], ...] = (
    ("max_tokens", int, "most tokens to generate; default: all the room that is left"),
    ("temperature", float, "0 is greedy; higher is more varied (default: 1)"),
    ("top_p", float, "sample from the most likely tokens that make up this much (default: 1)"),
    ("top_k", int, "sample from this many of the most likely tokens; 0: all (default)"),
    ("min_p", float, "leave out tokens less likely than this part of the most likely one"),
    ("repetition_penalty", float, "above 1: fewer repetitions (default: 1)"),
    ("seed", int, "the same seed gives the same text"),
)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """The flags, and --stop, which may be repeated."""
    group = parser.add_argument_group("sampling")
    for name, kind, text in _FLAGS:
        group.add_argument(
            "--" + name.replace("_", "-"),
            type=kind,
            dest=f"sampling_{name}",
            metavar=name.split("_")[-1].upper(),
            help=text,
        )
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """What was given, by the names of SamplingParams' fields; None means not given."""
    given = {name: getattr(args, f"sampling_{name}") for name, _, _ in _FLAGS}
    return given | {"stop": args.stop}
