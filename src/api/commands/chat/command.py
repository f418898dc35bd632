"""`tokenmill chat`: a conversation in the terminal, with a server or with an engine of its own."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ....core.errors import ConfigError
from ..flags.config_file import add_config_flag
from ..flags.engine import SERVING, add_engine_flags, engine_config, merge_model_argument
from ..flags.keys import KEY_VARIABLE
from ..flags.sampling import add_sampling_flags, sampling_options
from ..flags.text import utf8_text
from ..progress import ProgressDisplay
from .connection.partner import Partner
from .connection.transport import HTTPTransport
from .images import read_image
from .prompt import make_prompt, piped_prompt
from .session import Session
from .talking import Chat
from .view import make_view, tell


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description="Talk to a model in the terminal. Without --url, the command loads the model. "
        "/help lists the commands of a chat. From a pipe, each line is a message, and only answers "
        "are printed on standard output.",
        examples=(
            "tokenmill chat",
            "tokenmill chat model.gguf --temperature 0.2",
            "tokenmill chat --image photo.jpg -q 'What is this?'",
            "tokenmill chat --url http://127.0.0.1:8000/v1",
        ),
    )
    parser.add_argument(
        "model_argument",
        metavar="MODEL",
        nargs="?",
        help="the same as --model; with --url: one of the server's models (default: its first)",
    )
    group = parser.add_argument_group("conversation")
    group.add_argument(
        "--url",
        metavar="URL",
        help="use the model of this server, for example http://127.0.0.1:8000/v1",
    )
    group.add_argument(
        "--api-key", metavar="KEY", help=f"API key of that server (default: ${KEY_VARIABLE})"
    )
    group.add_argument(
        "-q",
        "--quick",
        metavar="TEXT",
        type=utf8_text,
        help="send this text, print the answer, and exit",
    )
    group.add_argument(
        "--system-prompt",
        metavar="TEXT",
        type=utf8_text,
        help="instructions before the conversation",
    )
    group.add_argument(
        "--image",
        metavar="PATH",
        type=Path,
        action="append",
        help="image of the first message; may be repeated",
    )
    group.add_argument(
        "--plain", action="store_true", help="do not show complete answers as Markdown"
    )
    group.add_argument("--stats", action="store_true", help="print time to first token and speed")
    add_sampling_flags(parser)
    add_engine_flags(parser, leave_out=("seed", "served_model_name", *SERVING))
    add_config_flag(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises TokenmillError if there is no model or no server."""
    merge_model_argument(args)
    given = {name: value for name, value in sampling_options(args).items() if value is not None}
    with _partner(args) as partner:
        session = Session(partner, system=args.system_prompt, options=given)
        session.images = [read_image(file) for file in args.image or ()]
        view = partial(make_view, renders=not args.plain)
        chat = Chat(session, tell, view, shows_statistics=args.stats)
        if args.quick:
            chat.answer(args.quick)
        elif sys.stdin.isatty() and sys.stdout.isatty():
            tell(_banner(partner))
            chat.talk(make_prompt(tell))
        else:
            chat.read(piped_prompt())
    return 0


def _banner(partner: Partner) -> str:
    length = partner.context_length
    context = f", context of {length} tokens" if length else ""
    return (
        f"{partner.model} ({partner.place}){context}\n"
        "/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves"
    )


@contextmanager
def _partner(args: argparse.Namespace) -> Iterator[Partner]:
    if args.url:
        key = args.api_key or os.environ.get(KEY_VARIABLE)
        yield Partner(HTTPTransport(_base_url(args.url), key), args.model)
        return
    from ....assembly import build_engine
    from .connection.embedded import EngineTransport, running_loop

    config = engine_config(args)
    with ProgressDisplay() as progress:
        engine = build_engine(config, progress)
        with running_loop(engine) as loop:
            progress.stop()
            yield Partner(EngineTransport(engine, loop))


def _base_url(url: str) -> str:
    """The server's URL, with http:// and /v1 added if they are missing. Raises ConfigError."""
    if "://" not in url:
        url = f"http://{url}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"--url must be like http://127.0.0.1:8000/v1, got {url!r}")
    return url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")
