"""`tokenmill trace`: what a running server did, as a file for a viewer of traces."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from ....core.contract.trace import MAX_TRACE_SECONDS
from ....core.errors import ConfigError, TokenmillError
from .running_server import add_server_flags, ask

_STDOUT = Path("-")
_PATH = "/debug/trace"
_MISSING = "the server has no admin key: start it with --admin-key"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "trace",
        help="write what a running server does into a file for Perfetto",
        description="Write the steps and the requests of a running server into a file in Chrome's "
        "trace-event format, for https://ui.perfetto.dev. The server needs --admin-key.",
        examples=(
            "tokenmill trace --seconds 5",
            "tokenmill trace --seconds 30 --past -o slow.json",
            "tokenmill trace -o - | gzip > trace.json.gz",
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
        help="file to write; -: standard output (default: %(default)s)",
    )  # fmt: skip
    add_server_flags(parser)
    parser.set_defaults(run=_run)


class _Begun(msgspec.Struct):
    since: float


class _Facts(msgspec.Struct):
    steps: int
    requests: int


class _Trace(msgspec.Struct, rename="camel"):
    other_data: _Facts


def _run(args: argparse.Namespace) -> int:
    """Wait, and write the file. Raises TokenmillError."""
    if not 0 < args.seconds <= MAX_TRACE_SECONDS:
        raise ConfigError(f"--seconds must be above 0 and at most {MAX_TRACE_SECONDS:g}")
    asked = f"seconds={args.seconds:g}"
    if not args.past:  # what is wrong is found before the wait
        begun = ask(args, f"{_PATH}?{asked}", _Begun, missing=_MISSING, body=b"")
        _write(args.output, b"")
        time.sleep(args.seconds)
        asked = f"since={begun.since!r}"
    found = ask(args, f"{_PATH}?{asked}", msgspec.Raw, missing=_MISSING)
    line = describe_trace(args.output, found)
    _write(args.output, found)
    if args.output != _STDOUT:
        print(line)
    return 0


def describe_trace(path: Path, trace: bytes | msgspec.Raw) -> str:
    """A line about a trace that is in a file. Raises msgspec.DecodeError for something else."""
    facts = msgspec.json.decode(trace, type=_Trace).other_data
    counts = f"{facts.steps} steps and {facts.requests} requests"
    return f"{path}: {counts}; open it at https://ui.perfetto.dev"


def _write(output: Path, trace: bytes | msgspec.Raw) -> None:
    """Write the file. Without a trace, only find out whether that is possible: a file that is
    there stays as it is."""
    try:
        if output == _STDOUT:
            sys.stdout.buffer.write(trace)
        else:
            with output.open("wb" if trace else "ab") as file:
                file.write(trace)
    except OSError as error:
        raise TokenmillError(f"{output} cannot be written: {error.strerror}") from error
