"""Sampling flags of `generate` and `chat`. A flag that is not given is the model's default."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ....core.errors import InvalidRequestError
from ....core.sampling_params import SamplingParams

_FLAGS: tuple[tuple[str, type, str], ...] = (
    ("max_tokens", int, "maximum number of tokens to generate; default: as many as fit"),
    ("temperature", float, "0: greedy; higher: more varied (default: 1)"),
    ("top_p", float, "sample from the most likely tokens with this total probability (default: 1)"),
    ("top_k", int, "sample from the K most likely tokens; 0: from all (default)"),
    (
        "min_p",
        float,
        "leave out tokens below this fraction of the highest probability (default: 0)",
    ),
    ("repetition_penalty", float, "values above 1 reduce repetitions (default: 1)"),
    ("seed", int, "sampling seed; the same seed gives the same text"),
)
SAMPLING: Mapping[str, type] = {name: kind for name, kind, _ in _FLAGS}
"""Types of the sampling parameters that are numbers, by name."""


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add the sampling flags, and --stop, which may be repeated."""
    group = parser.add_argument_group(
        "sampling", "defaults of the model's generation_config replace those given here"
    )
    for name, kind, text in _FLAGS:
        group.add_argument(
            "--" + name.replace("_", "-"),
            type=kind,
            dest=f"sampling_{name}",
            metavar="N",
            help=text,
        )
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="stop before this text; may be repeated"
    )


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """Values of the flags, by the names of SamplingParams' fields; None if not given.

    Raises InvalidRequestError for a value out of range.
    """
    given = {name: getattr(args, f"sampling_{name}") for name, _, _ in _FLAGS}
    options = given | {"stop": args.stop}
    SamplingParams(**{name: value for name, value in options.items() if value is not None})
    return options


def read_sampling(name: str, text: str) -> int | float:
    """The value of a parameter in SAMPLING. Raises InvalidRequestError if it is not a number."""
    kind = SAMPLING[name]
    try:
        value: int | float = kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise InvalidRequestError(f"{name} must be {wanted}, got {text!r}", param=name) from None
    return value
