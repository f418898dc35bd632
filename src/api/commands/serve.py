"""`tokenmill serve`: the OpenAI-compatible server."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...core.config import EngineConfig
from ...core.contract.client import STALL_SECONDS, EngineClient
from ...core.errors import ConfigError, TokenmillError
from ...core.log import get_logger
from .flags.address import add_address_flags
from .flags.config_file import add_config_flag
from .flags.engine import (
    add_engine_flags,
    add_model_argument,
    engine_config,
    merge_model_argument,
    parse_size,
)
from .flags.groups import flag_group
from .flags.keys import SECRET_VARIABLE, add_key_flags, admin_key, api_keys, warn_of_visible_keys
from .progress import ProgressDisplay
from .ready import describe, ready_block
from .start_times import last_times, remember

log = get_logger("api")
STARTING = "starting the engine"
"""The stage before those of the engine, in which its process imports what it needs."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie", "x-api-key")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve a model through an OpenAI-compatible HTTP API",
        description="Serve MODEL (default: SmolLM2-135M-Instruct) through an OpenAI-compatible "
        "API.",
        epilog="After the first SIGTERM or Ctrl-C, accepted requests may finish. "
        "The second one ends the server at once.",
        examples=(
            "tokenmill serve",
            "tokenmill serve Qwen/Qwen3-0.6B --allow-download --port 8080",
            "tokenmill serve model.gguf --max-model-len 8k --kv-cache-memory 4G",
        ),
    )
    add_model_argument(parser)
    group = flag_group(parser, "server")
    add_address_flags(group)
    group.add_argument(
        "--served-model-name",
        action="extend",
        nargs="+",
        metavar="NAME",
        help="names of the model in the API: answers and metrics have the first, requests may have "
        "any (default: the model's own name)",
    )
    add_key_flags(group)
    group.add_argument(
        "--metadata-header",
        action="append",
        type=_header_name,
        metavar="NAME",
        help="header that plugins see in a request's metadata, under its name in lower case; may "
        "be repeated. Let your proxy set it, and remove it from the requests of clients",
    )
    group.add_argument(
        "--allowed-origins",
        action="append",
        metavar="ORIGIN",
        help="origin (CORS) from which browsers may call; may be repeated",
    )
    group.add_argument(
        "--allowed-host",
        action="append",
        metavar="NAME",
        help="name that the Host header may have, besides those of this machine; may be repeated. "
        "Checked only on a loopback address without --api-key, against DNS rebinding",
    )
    group.add_argument(
        "--ui",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="serve pages for browsers: /live shows what the server does, /docs the API "
        "(default: on)",
    )
    group.add_argument(
        "--max-body-bytes",
        type=parse_size,
        metavar="SIZE",
        help="maximum size of a request body (default: 20M if the model reads images, else 4M)",
    )
    group.add_argument(
        "--strict-fields",
        action="store_true",
        help="refuse requests with unknown fields or without a model (default: unknown fields are "
        "ignored, and a header of the answer names them)",
    )
    group.add_argument(
        "--sse-keep-alive-interval",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="send a comment in a stream after this many seconds without data; 0: never (default)",
    )
    group = flag_group(parser, "process")
    group.add_argument(
        "--shutdown-timeout",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="seconds that accepted requests have to finish after a signal (default: %(default)s)",
    )
    group.add_argument(
        "--stall-timeout",
        type=_seconds,
        default=STALL_SECONDS,
        metavar="SECONDS",
        help="a step hangs if it takes longer than 3 times its expected duration plus these "
        "seconds: /ready answers 503, and an engine process is restarted (default: %(default)s)",
    )
    group.add_argument(
        "--engine-process",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run the engine in a process of its own, and start another one if it crashes or "
        "hangs, see --stall-timeout (default: on)",
    )
    group.add_argument(
        "--max-engine-restarts",
        type=_count,
        default=5,
        metavar="N",
        help="maximum number of restarts of the engine process within ten minutes; at the next "
        "failure the server ends with an error (default: %(default)s)",
    )
    group = flag_group(parser, "monitoring")
    group.add_argument(
        "--enable-log-requests",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="log a line for each answer, with its tokens and speed (default: on)",
    )
    group.add_argument(
        "--disable-log-requests",
        dest="enable_log_requests",
        action="store_false",
        help="the same as --no-enable-log-requests",
    )
    group.add_argument(
        "--enable-per-request-metrics",
        action="store_true",
        help="add vLLM's `metrics` to answers with one choice: milliseconds in the queue, to the "
        "first token and between tokens",
    )
    group.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="lowest level of log lines that are shown (default: %(default)s)",
    )
    group.add_argument(
        "--log-format",
        default="auto",
        choices=["auto", "text", "json"],
        help="format of the log on stderr: lines for people, or one JSON object per line; auto: "
        "text on a terminal, else JSON (default: %(default)s)",
    )
    add_engine_flags(parser, leave_out=("served_model_name",))
    add_config_flag(parser)
    flag_group(parser, "answers").add_argument(
        "--enable-auto-tool-choice",
        action="store_true",
        help="accepted because vLLM needs it; here tool_choice 'auto' is always enabled",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal. Raises ConfigError."""
    begun = time.monotonic()
    merge_model_argument(args)
    names = _take_model_names(args)
    config = engine_config(args)
    from ...core.processes.free_memory import share_heaps
    from ...core.processes.printed import prints_shown
    from ..http.connections.descriptors import raise_descriptor_limit
    from ..listening import Address
    from ..server import ServeOptions, configure_logging, serve
    from ..serving.context import ServerSettings
    from ..stopping import leave_if_hung

    as_json = args.log_format == "json" or (args.log_format == "auto" and not sys.stderr.isatty())
    on_terminal = not as_json and sys.stderr.isatty()
    handler = configure_logging(args.log_level, as_json=as_json)
    if on_terminal and args.log_level == "info":
        handler.setLevel("WARNING")  # the block of the start shows what the other lines say
    raise_descriptor_limit()
    if args.engine_process:
        share_heaps()
    warn_of_visible_keys(args)
    address = Address(
        host=args.host,
        port=args.port,
        uds=args.uds,
        ssl_certfile=args.ssl_certfile,
        ssl_keyfile=args.ssl_keyfile,
    )
    options = ServeOptions(
        address=address,
        shutdown_timeout=args.shutdown_timeout,
        engine_process=args.engine_process,
        max_engine_restarts=args.max_engine_restarts,
        settings=ServerSettings(
            api_keys=api_keys(args),
            api_key_file=args.api_key_file,
            admin_key=admin_key(args),
            api_key_secret=os.environ.get(SECRET_VARIABLE, "").encode() or None,
            metadata_headers=tuple(args.metadata_header or ()),
            max_body_bytes=args.max_body_bytes,
            allowed_origins=tuple(args.allowed_origins or ()),
            is_local=address.is_loopback,
            allowed_hosts=tuple(args.allowed_host or ()),
            stall_timeout=args.stall_timeout,
            sse_keep_alive_interval=args.sse_keep_alive_interval,
            strict_fields=args.strict_fields,
            model_aliases=names[1:],
            root_path=args.root_path,
            ui=args.ui,
            per_request_metrics=args.enable_per_request_metrics,
            log_requests=args.enable_log_requests,
        ),
    )
    if not options.settings.needs_key and not address.is_loopback and not address.uds:
        log.warning(
            "server_is_open",
            reason=f"without --api-key, everyone who can reach {args.host} can use this server",
        )
    start = " ".join(map(str, (config.model, config.dtype, config.quantize_on_load, config.device)))
    show_prints = prints_shown(lambda line: log.warning("printed", text=line))
    with ExitStack() as shown, _progress(config, start, on_terminal=on_terminal) as progress:
        if not on_terminal:  # there, the progress display shows what is printed until it stops
            shown.enter_context(show_prints)

        def on_ready(engine: EngineClient, url: str) -> None:
            progress.stop()
            remember(start, progress.seconds)
            handler.setLevel("NOTSET")
            seconds, needs_key = time.monotonic() - begun, options.settings.needs_key
            ready = describe(engine, url, seconds, needs_key=needs_key)
            if on_terminal:
                print(ready_block(ready), file=sys.stderr, flush=True)
                shown.enter_context(show_prints)
            else:
                log.info("listening", **ready.fields)

        def show(stage: str, fraction: float) -> None:
            progress(STARTING, 1.0)  # the engine's first stage has begun
            progress(stage, fraction)

        progress(STARTING, 0.0)
        try:
            asyncio.run(serve(config, options, show, on_ready))
        except TokenmillError as error:
            if not as_json:
                raise
            log.error("failed", reason=str(error))
            return 1
    log.info("stopped")
    leave_if_hung()
    return 0


def _progress(config: EngineConfig, start: str, *, on_terminal: bool) -> ProgressDisplay:
    """The display of a start. `start` says which earlier starts took as long."""
    if not on_terminal:
        return ProgressDisplay(_log_stage)
    model = Path(config.model).name if config.model else "the default model"
    title = f"Starting {config.served_model_name or model}"
    return ProgressDisplay(title=title, expected=last_times(start))


def _log_stage(stage: str, seconds: float | None) -> None:
    if seconds is None:
        log.info("stage_begun", stage=stage)
    else:
        log.info("stage_done", stage=stage, seconds=round(seconds, 2))


def _take_model_names(args: argparse.Namespace) -> tuple[str, ...]:
    """The names of --served-model-name; the first one becomes the engine's.

    Raises ConfigError for an empty name, and if the last of several names is probably the argument
    MODEL.
    """
    names = tuple(args.served_model_name or ())
    if not all(names):
        raise ConfigError("a name of --served-model-name is empty")
    if len(names) > 1 and args.model is None and _is_path(names[-1]):
        raise ConfigError(
            f"--served-model-name takes all arguments after it as names, even {names[-1]!r}; "
            "put MODEL before it, or give --model (`tokenmill model path` prints the default one)"
        )
    args.served_model_name = names[0] if names else None
    return names


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith(".gguf") or os.path.exists(name)


def _header_name(text: str) -> str:
    if not _HEADER_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the name of a header with at most 64 characters"
        )
    if text.lower() in _SECRET_HEADERS:
        raise argparse.ArgumentTypeError(f"{text} is a secret, which plugins must not see")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: give seconds, 0 or more")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1000")
    return int(text)
