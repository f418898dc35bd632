"""`tokenmill trace`: what a running server did, as a file for a viewer of traces."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import msgspec

from ...core.errors import ConfigError, TokenmillError
from .running_server import add_server_flags, ask

MAX_SECONDS = 3600.0


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "trace",
        help="write what a running server does into a file for Perfetto",
        description="Write the steps and the requests of a running server into a file in Chrome's "
        "trace-event format, for https://ui.perfetto.dev. The server needs --admin-key.",
        examples=(
            "tokenmill trace --seconds 5",
            "tokenmill trace --seconds 30 --past -o slow.json",
        ),
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, metavar="SECONDS",
        help="length of the trace, which begins now (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--past", action="store_true",
        help="trace the last --seconds, which the server's step log has, instead of the next ones",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("trace.json"), metavar="PATH",
        help="file to write (default: %(default)s)",
    )  # fmt: skip
    add_server_flags(parser)
    parser.set_defaults(run=_run)


class _Facts(msgspec.Struct):
    steps: int
    requests: int


class _Trace(msgspec.Struct, rename="camel"):
    other_data: _Facts


def _run(args: argparse.Namespace) -> int:
    """Wait, and write the file. Raises TokenmillError."""
    if not 0 < args.seconds <= MAX_SECONDS:
        raise ConfigError(f"--seconds must be above 0 and at most {MAX_SECONDS:g}")
    if not args.past:
        time.sleep(args.seconds)
    missing = "the server has no admin key: start it with --admin-key"
    found = ask(args, f"/debug/trace?seconds={args.seconds:g}", msgspec.Raw, missing=missing)
    facts = msgspec.json.decode(found, type=_Trace).other_data
    try:
        args.output.write_bytes(found)
    except OSError as error:
        raise TokenmillError(f"{args.output} cannot be written: {error.strerror}") from error
    counts = f"{facts.steps} steps and {facts.requests} requests"
    print(f"{args.output}: {counts}; open it at https://ui.perfetto.dev")
    return 0
