"""`tokenmill chat`: a conversation in the terminal, with a server or with an engine of its own."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import urlsplit

from ...core.errors import ConfigError, TokenmillError
from .flags.engine import SERVING, add_engine_flags, engine_config
from .flags.sampling import add_sampling_flags, sampling_options
from .progress import ProgressDisplay

Messages = list[dict[str, str]]


class Partner(Protocol):
    """A model that answers: a server's, or one in this process."""

    def answer(self, messages: Messages) -> AsyncIterator[str]:
        """The text of the answer, in pieces."""
        ...


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description="Talk to a model in the terminal. Without --url, the command loads the model. "
        "An empty line or Ctrl-D ends the chat.",
        examples=(
            "tokenmill chat",
            "tokenmill chat --model model.gguf --temperature 0.2",
            "tokenmill chat --url http://127.0.0.1:8000/v1",
        ),
    )
    group = parser.add_argument_group("conversation")
    group.add_argument(
        "--url",
        metavar="URL",
        help="use the model of this server, for example http://127.0.0.1:8000/v1",
    )
    group.add_argument("--api-key", metavar="KEY", help="API key of that server")
    group.add_argument(
        "-q", "--quick", metavar="TEXT", help="send this text, print the answer, and exit"
    )
    group.add_argument(
        "--system-prompt", metavar="TEXT", help="instructions before the conversation"
    )
    group.add_argument("--stats", action="store_true", help="print time to first token and speed")
    add_sampling_flags(parser)
    add_engine_flags(parser, leave_out=("seed", "served_model_name", *SERVING))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises TokenmillError if there is no model or no server."""
    asyncio.run(_talk(args))
    return 0


async def _talk(args: argparse.Namespace) -> None:
    system = args.system_prompt
    messages: Messages = [{"role": "system", "content": system}] if system else []
    async with _partner(args) as partner:
        for text in [args.quick] if args.quick else _inputs():
            messages.append({"role": "user", "content": text})
            answer = await _print_answer(partner, messages, args.stats)
            messages.append({"role": "assistant", "content": answer})


def _inputs() -> Iterator[str]:
    while True:
        try:
            text = input("you> ").strip()
        except EOFError:
            print()
            return
        if not text:
            return
        yield text


async def _print_answer(partner: Partner, messages: Messages, show_stats: bool) -> str:
    started = time.monotonic()
    times: list[float] = []
    pieces: list[str] = []
    async for piece in partner.answer(messages):
        times.append(time.monotonic())
        pieces.append(piece)
        print(piece, end="", flush=True)
    print()
    if show_stats and len(times) > 1:
        speed = (len(times) - 1) / max(times[-1] - times[0], 1e-9)
        print(
            f"[first token after {times[0] - started:.2f} s, {speed:.1f} tokens/s]", file=sys.stderr
        )
    return "".join(pieces)


@asynccontextmanager
async def _partner(args: argparse.Namespace) -> AsyncIterator[Partner]:
    options = sampling_options(args)
    if args.url:
        yield _Server(_base_url(args.url), args.api_key, options)
        return
    from ...assembly import build_engine

    config = engine_config(args)
    with ProgressDisplay() as progress:
        async with build_engine(config, progress) as engine:
            progress.stop()
            yield _Embedded(engine, options)


def _base_url(url: str) -> str:
    """The server's URL, with http:// and /v1 added if they are missing. Raises ConfigError."""
    if "://" not in url:
        url = f"http://{url}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"--url must be like http://127.0.0.1:8000/v1, got {url!r}")
    return url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")


class _Embedded:
    """An engine in this process."""

    def __init__(self, engine: Any, options: dict[str, Any]) -> None:
        self._engine = engine
        self._options = options

    async def answer(self, messages: Messages) -> AsyncIterator[str]:
        from ...core.sampling_params import OutputKind
        from ..openai.sampling import params_with_all_room

        prompt = await asyncio.to_thread(self._engine.tokenizer.encode_chat, messages)
        params = params_with_all_room(self._engine, **self._options, output_kind=OutputKind.DELTA)
        async for output in self._engine.generate(prompt, params):
            yield output.outputs[0].text


class _Server:
    """A server with the OpenAI API. A thread reads its lines."""

    def __init__(self, url: str, api_key: str | None, options: dict[str, Any]) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._options = options

    async def answer(self, messages: Messages) -> AsyncIterator[str]:
        given = {name: value for name, value in self._options.items() if value is not None}
        body = json.dumps({"messages": messages, "stream": True, **given}).encode()
        try:
            request = urllib.request.Request(
                f"{self._url}/chat/completions", body, self._headers, method="POST"
            )
            with await asyncio.to_thread(urllib.request.urlopen, request) as reply:
                while line := await asyncio.to_thread(reply.readline):
                    if line.startswith(b"data: {"):
                        for piece in _pieces(json.loads(line[6:])):
                            yield piece
        except urllib.error.HTTPError as error:
            raise TokenmillError(_message(error)) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TokenmillError(f"no server answers at {self._url}: {error}") from error


def _pieces(event: dict[str, Any]) -> list[str]:
    """The texts of a chunk's choices. Raises TokenmillError for an error event."""
    if "error" in event:
        raise TokenmillError(event["error"]["message"])
    return [choice["delta"].get("content") or "" for choice in event["choices"]]


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {error.code} {error.reason}"
