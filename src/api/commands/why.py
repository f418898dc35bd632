"""`tokenmill why`: where the time of a request went, asked from a running server."""

from __future__ import annotations

import argparse
import os
from typing import Any
from urllib.parse import quote

import msgspec

from ...core.contract.explanation import Explanation
from ...core.errors import ConfigError, TokenmillError
from .chat.transport import HTTPTransport
from .explanations import explanation_text, parts_text
from .flags.keys import ADMIN_VARIABLE
from .printing import new_table, print_json, print_table

DEFAULT_URL = "http://127.0.0.1:8000"


class _Answer(msgspec.Struct):
    requests: list[Explanation] = []
    error: Any = None


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "why",
        help="show where the time of a request went",
        description="Divide the latency of a live or recent request of a running server into "
        "waiting, by the limit that stopped it, its prompt, preemptions, decoding and the server's "
        "own time. The server needs --admin-key.",
        examples=(
            "tokenmill why chatcmpl-7f3a",
            "tokenmill why --slowest 20",
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
        "--url", metavar="URL", default=DEFAULT_URL, help=f"the server (default: {DEFAULT_URL})"
    )
    parser.add_argument(
        "--admin-key", metavar="KEY", help=f"the server's admin key (default: ${ADMIN_VARIABLE})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Print one request or the slowest ones. Raises TokenmillError."""
    if (args.request_id is None) == (args.slowest is None):
        raise ConfigError("give either the ID of a request or --slowest N")
    found = _ask(args)
    if args.json:
        print_json(found)
    elif args.slowest is None:
        print("\n\n".join(map(explanation_text, found)))
    else:
        _print_table(found)
    return 0


def _ask(args: argparse.Namespace) -> list[Explanation]:
    key = args.admin_key or os.environ.get(ADMIN_VARIABLE)
    url = args.url if "://" in args.url else f"http://{args.url}"
    transport = HTTPTransport(url.rstrip("/").removesuffix("/v1"), key)
    path = f"?slowest={args.slowest}" if args.request_id is None else f"/{quote(args.request_id)}"
    reply = transport.send(f"/debug/requests{path}")
    body = b"".join(reply.lines)
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.DecodeError:
        answer = _Answer(error=f"status {reply.status}")
    if reply.status == 200 and answer.error is None:
        return answer.requests
    error = answer.error
    text = error.get("message", error) if isinstance(error, dict) else error
    if reply.status == 404 and "step log" not in str(text):
        text = "the server has no admin key: start it with --admin-key"
    if reply.status in (401, 403):
        text = f"{text} (give the admin key with --admin-key or {ADMIN_VARIABLE})"
    raise TokenmillError(f"{transport.place}: {text}")


def _print_table(found: list[Explanation]) -> None:
    right = ("SECONDS", "FIRST TOKEN")
    table = new_table("REQUEST", "KEY", *right, "CAUSES", right=right)
    for one in found:
        first = one.first_token_seconds
        table.add_row(
            one.request_id,
            one.api_key_id or "-",
            f"{one.seconds:.2f}",
            "-" if first is None else f"{first:.2f}",
            parts_text(dict(one.causes[:3])),
        )
    print_table(table)
