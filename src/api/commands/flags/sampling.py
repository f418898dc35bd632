"""Sampling flags of `generate` and `chat`. A flag that is not given is the model's default."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ....core.errors import InvalidRequestError
from ....core.requests.sampling_params import (
    FLAG,
    SamplingParams,
    described,
    meaning_of,
    sampled_in,
)
from ....core.settings.declaration import flag

SAMPLING: Mapping[str, type] = {
    name: int if "an integer" in described(name) else float for name in sampled_in(FLAG)
}
"""Types of the sampling parameters that are numbers, by name."""


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add the sampling flags, and --stop, which may be repeated."""
    group = parser.add_argument_group(
        "sampling", "defaults of the model's generation_config replace those given here"
    )
    for name, kind in SAMPLING.items():
        group.add_argument(
            flag(name), type=kind, dest=f"sampling_{name}", metavar="N", help=meaning_of(name)
        )
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="stop before this text; may be repeated"
    )


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """Values of the flags, by the names of SamplingParams' fields; None if not given.

    Raises InvalidRequestError for a value out of range.
    """
    given = {name: getattr(args, f"sampling_{name}") for name in SAMPLING}
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
