"""Asks a running server for what its administrator may see."""

from __future__ import annotations

import argparse
import os
from typing import Any, TypeVar

import msgspec

from ....core.errors import TokenmillError
from ..chat.connection.transport import HTTPTransport
from ..flags.keys import ADMIN_VARIABLE

DEFAULT_URL = "http://127.0.0.1:8000"
T = TypeVar("T")


class _Refusal(msgspec.Struct):
    error: Any = None


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Add --url and --admin-key."""
    parser.add_argument(
        "--url", metavar="URL", default=DEFAULT_URL, help=f"the server (default: {DEFAULT_URL})"
    )
    parser.add_argument(
        "--admin-key", metavar="KEY", help=f"the server's admin key (default: ${ADMIN_VARIABLE})"
    )


def ask(
    args: argparse.Namespace, path: str, kind: type[T], *, missing: str, body: bytes | None = None
) -> T:
    """GET a path, or POST a body to it, and decode the answer. Raises TokenmillError.

    `missing`: the message of the error if the server does not have the path.
    """
    key = args.admin_key or os.environ.get(ADMIN_VARIABLE)
    url = args.url if "://" in args.url else f"http://{args.url}"
    transport = HTTPTransport(url.rstrip("/").removesuffix("/v1"), key)
    reply = transport.send(path, body)
    body = b"".join(reply.lines)
    if reply.status == 200:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as error:
            raise TokenmillError(
                f"the answer of {transport.place} is not tokenmill's: {error}"
            ) from error
    try:
        found = msgspec.json.decode(body, type=_Refusal).error
    except msgspec.DecodeError:
        found = f"status {reply.status}"
    text = found.get("message", found) if isinstance(found, dict) else found
    if reply.status == 404 and "step log" not in str(text):
        text = missing
    if reply.status in (401, 403):
        text = f"{text} (give the admin key with --admin-key or {ADMIN_VARIABLE})"
    raise TokenmillError(f"{transport.place}: {text}")
