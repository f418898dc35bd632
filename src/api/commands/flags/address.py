"""Flags of `serve`: where it listens, and how it is seen from outside."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def add_address_flags(group: Any) -> None:
    group.add_argument(
        "--host",
        type=_host,
        default="127.0.0.1",
        metavar="ADDRESS",
        help="name or address to listen on; :: for all networks with IPv6 and IPv4 "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--port",
        type=_port,
        default=8000,
        metavar="N",
        help="port; 0: any free port (default: %(default)s)",
    )
    group.add_argument(
        "--uds",
        type=Path,
        metavar="PATH",
        help="Unix socket to listen on, instead of --host and --port. The umask decides who may "
        "connect: with 022 only this user",
    )
    group.add_argument(
        "--ssl-certfile",
        type=Path,
        metavar="PATH",
        help="certificate for HTTPS in PEM format, with its chain (default: HTTP)",
    )
    group.add_argument(
        "--ssl-keyfile",
        type=Path,
        metavar="PATH",
        help="private key of the certificate in PEM format, without a password "
        "(default: in --ssl-certfile)",
    )
    group.add_argument(
        "--root-path",
        type=_root_path,
        default="",
        metavar="PATH",
        help="prefix under which a proxy shows the server, such as /llm. Paths with and without it "
        "are served, and /openapi.json names it",
    )


def _host(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError(
            "it is empty: give 127.0.0.1 for this machine, 0.0.0.0 for all networks"
        )
    return text


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give 0 to 65535")
    return int(text)


def _root_path(text: str) -> str:
    path = text.rstrip("/")
    if not _ROOT_PATH.fullmatch(path):
        raise argparse.ArgumentTypeError(f"{text!r} is not a path such as /llm or /a/b")
    return path
