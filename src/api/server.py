"""Runs the app under uvicorn on one socket, and drains it at SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvicorn

from ..assembly import build_engine, build_engine_process
from ..core.config import EngineConfig
from ..core.contract.client import EngineClient
from ..core.errors import ConfigError, EngineStoppedError
from ..core.interfaces import Progress
from ..core.remote.client import EngineProcess
from ..core.shell.engine_shell import EngineShell
from .app import create_app
from .http.connections import Connection
from .http.log_throttle import Throttle
from .openai.context import ServerSettings
from .stopping import LAST_WORDS, Stopper

BACKLOG = 1024
SEND_BUFFER_BYTES = 256 << 10
"""Limit of unsent data in the kernel per connection; the kernel takes twice as much memory for it.
Without a limit it holds several MB for a client that does not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The server's address, shutdown time and HTTP settings."""

    host: str = "127.0.0.1"
    port: int = 8000
    shutdown_timeout: float = 30.0
    """Seconds that accepted requests get to finish after the first SIGTERM or Ctrl-C."""
    access_log: bool = False
    engine_process: bool = False
    """Run the engine in a supervised process of its own."""
    max_engine_restarts: int = 5
    """Restarts of that process within ten minutes after which the server ends."""
    settings: ServerSettings


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: Stopper handles signals, and drains the engine first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket.

    `serve` opens it before the model is loaded, so that a port in use is reported at once. Raises
    ConfigError if the address is empty or cannot be used.
    """
    if not host:
        raise ConfigError(
            "--host is empty; give 127.0.0.1 for this machine, 0.0.0.0 for all networks"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; "
            "choose another with --host or --port"
        ) from error
    return sock


def make_server(engine: EngineClient, options: ServeOptions) -> uvicorn.Server:
    """A uvicorn server for a started engine. It installs no signal handlers."""
    return _Server(
        uvicorn.Config(
            create_app(engine, options.settings),
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=options.access_log,
            timeout_graceful_shutdown=None,
            server_header=False,
        )
    )


async def serve(
    config: EngineConfig,
    options: ServeOptions,
    progress: Progress,
    on_ready: Callable[[EngineClient, str], None],
) -> None:
    """Load the model and serve until SIGTERM or SIGINT; a second signal ends the process.

    `on_ready` gets the engine and the server's URL. Raises ConfigError for an invalid
    configuration, model, plugin or address, and EngineStoppedError if the engine's process fails
    too often.
    """
    with bind(options.host, options.port) as sock, Stopper(options.shutdown_timeout) as stopper:
        async with _make_engine(config, options, progress) as engine:
            server = make_server(engine, options)
            stopper.install(engine, server)
            tasks = [asyncio.create_task(_announce(engine, server, sock, on_ready))]
            if isinstance(engine, EngineProcess):
                tasks.append(asyncio.create_task(_end_without_engine(engine, server)))
            await server.serve(sockets=[sock])
            for task in tasks:
                task.cancel()
        if isinstance(engine, EngineProcess) and engine.supervisor.failure is not None:
            raise EngineStoppedError(engine.supervisor.failure)


def _make_engine(
    config: EngineConfig, options: ServeOptions, progress: Progress
) -> EngineShell | EngineProcess:
    if not options.engine_process:
        return build_engine(config, progress)
    return build_engine_process(
        config,
        progress,
        stall_timeout=options.settings.stall_timeout,
        max_restarts=options.max_engine_restarts,
    )


async def _end_without_engine(engine: EngineProcess, server: uvicorn.Server) -> None:
    """End the server once its engine is not restarted any more."""
    await engine.supervisor.given_up.wait()
    server.should_exit = True
    await asyncio.sleep(LAST_WORDS)
    server.force_exit = True


async def _announce(
    engine: EngineClient,
    server: uvicorn.Server,
    sock: socket.socket,
    on_ready: Callable[[EngineClient, str], None],
) -> None:
    while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
        await asyncio.sleep(0.01)
    on_ready(engine, local_url(*sock.getsockname()[:2]))


def local_url(host: str, port: int) -> str:
    """The URL for a client on this machine.

    0.0.0.0 and :: mean all addresses to a server and none to a client, so loopback replaces them.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        host = "::1" if address.version == 6 else "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def configure_logging(level: str) -> None:
    """Log the "tokenmill" logger and uvicorn's warnings to stderr, one line per event."""
    from ..core.log import EventFormatter

    handler = logging.StreamHandler()
    handler.setFormatter(EventFormatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    for name, at_least in (
        ("tokenmill", level),
        ("uvicorn.error", "WARNING"),
        ("uvicorn.access", level),
    ):
        logger = logging.getLogger(name)
        logger.filters = [Throttle()] if name == "uvicorn.error" else []
        logger.handlers = [handler]  # replaces the handler of `cli`, which shows warnings only
        logger.setLevel(at_least.upper())
        logger.propagate = False
