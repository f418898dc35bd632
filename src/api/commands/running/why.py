"""`tokenmill why`: where the time of a request went, asked from a running server."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from ....core.contract.explanation import Explanation
from ..printing import new_table, print_json, print_table
from .explanations import explanation_text, parts_text
from .running_server import add_server_flags, ask

NUM_SLOWEST = 20


class _Answer(msgspec.Struct):
    requests: list[Explanation]


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "why",
        help="show where the time of a request went",
        description="Divide the latency of a live or recent request of a running server into "
        "waiting, by the limit that stopped it, its prompt, preemptions, decoding and the server's "
        "own time. The server needs --admin-key.",
        examples=(
            "tokenmill why chatcmpl-7f3a",
            "tokenmill why --slowest 20",
            "tokenmill why --key batch-jobs",
            "tokenmill why chatcmpl-7f3a --json",
        ),
    )
    parser.add_argument(
        "request_id", metavar="ID", nargs="?", help="the id in the answer of the request"
    )
    parser.add_argument(
        "--slowest", metavar="N", type=int, help="list the N slowest requests by cause"
    )
    parser.add_argument(
        "--key", metavar="NAME", help="list only requests of this API key, by its id in the log"
    )
    add_server_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=partial(_run, parser))


def _run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Print one request or the slowest ones. Raises TokenmillError."""
    lists = args.slowest is not None or args.key is not None
    if (args.request_id is not None) == lists:
        parser.error("give either the ID of a request, or --slowest N or --key NAME")
    from ...http.logs.log_lines import printable

    found = _ask(args)
    if args.json:
        print_json(found)
    elif not lists:
        for line in "\n\n".join(map(explanation_text, found)).splitlines():
            print(printable(line))
    else:
        _print_table(found)
    return 0


def _ask(args: argparse.Namespace) -> list[Explanation]:
    path = f"/{quote(args.request_id or '')}"
    if args.request_id is None:
        count = NUM_SLOWEST if args.slowest is None else args.slowest
        query = {"slowest": count} | ({} if args.key is None else {"key": args.key})
        path = f"?{urlencode(query)}"
    missing = "the server has no admin key: start it with --admin-key"
    return ask(args, f"/debug/requests{path}", _Answer, missing=missing).requests


def _print_table(found: list[Explanation]) -> None:
    from ...http.logs.log_lines import printable

    right = ("SECONDS", "FIRST TOKEN")
    table = new_table("REQUEST", "KEY", *right, "CAUSES", right=right)
    for one in found:
        first = one.first_token_seconds
        table.add_row(
            printable(one.request_id),
            one.api_key_id or "-",
            f"{one.seconds:.2f}",
            "-" if first is None else f"{first:.2f}",
            parts_text(dict(one.causes[:3])),
        )
    print_table(table)
