"""Runs the app under uvicorn on one socket, and drains it at SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvicorn

from ..assembly import build_engine, build_supervised_engine
from ..core.config import EngineConfig
from ..core.contract.client import EngineClient
from ..core.errors import EngineStoppedError
from ..core.host.calling.main_thread_limit import MainThreadLimit
from ..core.host.calling.start_limit import StartLimit
from ..core.interfaces import Progress
from ..core.log import JsonFormatter
from ..core.processes.free_memory import return_memory_regularly
from ..core.shell.engine_shell import EngineShell
from ..core.shell.local_engine import LocalEngine, refuse_replicas
from ..core.supervised.client import SupervisedEngine
from .app import create_app, make_key_ring, plugin_routes
from .http.connections.connection import Connection
from .http.connections.descriptors import max_connections
from .http.connections.handshakes import Handshake
from .http.connections.room import Room
from .http.keys.ring import KeyRing
from .http.logs.log_lines import log_formatter
from .http.logs.log_output import log_handler
from .http.logs.log_throttle import Throttle
from .listening import BACKLOG, Address, listening, tls_context
from .plugin_routes.building import PluginRoutes
from .serving.context import ServerSettings
from .stopping import LAST_WORDS, Stopper


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The server's address, shutdown time and HTTP settings."""

    address: Address = field(default_factory=Address)
    shutdown_timeout: float = 30.0
    """Seconds that accepted requests get to finish after the first SIGTERM or Ctrl-C."""
    engine_process: bool = False
    """Run the engine in a supervised process of its own."""
    max_engine_restarts: int = 5
    """Restarts of that process within ten minutes after which the server ends."""
    settings: ServerSettings


KEEP_ALIVE_SECONDS = 75
"""Time that a connection waits for its next request: longer than proxies and load balancers keep
theirs, because the side that closes first makes the other one lose requests."""
ACCEPTED_AT_ONCE = 4
"""Connections that asyncio accepts in one turn of the event loop. After four turns they are counted
and others are closed in exchange, so four times that number must fit into OTHER_FILES."""


HOOK_SECONDS = 5.0
"""Time after which a parser or router is interrupted. Most need less than a millisecond, but the
machine may be busy."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: Stopper handles signals, and drains the engine first."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept. asyncio makes the kernel's queue as short as ACCEPTED_AT_ONCE."""
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(BACKLOG)

    async def main_loop(self) -> None:
        """Serve until the end. Meanwhile the process returns memory that it has freed."""
        returning = asyncio.create_task(return_memory_regularly())
        try:
            await super().main_loop()
        finally:
            returning.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(
    engine: EngineClient,
    options: ServeOptions,
    keys: KeyRing | None = None,
    routes: PluginRoutes | None = None,
) -> uvicorn.Server:
    """A uvicorn server for a started engine. It installs no signal handlers. `keys` and `routes`:
    see `create_app`."""
    context, room = tls_context(options.address), Room(max_connections())
    protocol: Any = partial(Connection, room)
    if context is not None:
        protocol = partial(Handshake, context, room)
    return _Server(
        uvicorn.Config(
            create_app(engine, options.settings, keys, routes),
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=None,
            backlog=ACCEPTED_AT_ONCE,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
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
    keys = make_key_ring(options.settings)
    with (
        listening(options.address) as sock,
        Stopper(options.shutdown_timeout) as stopper,
        contextlib.ExitStack() as start,
    ):
        start.enter_context(StartLimit(config.plugin_start_timeout, interrupts=True))
        if options.settings.api_key_file is not None:
            stopper.call_at_hangup(keys.reload)
        routes = plugin_routes(config)  # a wrong one is refused before the model is loaded
        async with _make_engine(config, options, progress) as engine:
            server = make_server(engine, options, keys, routes)
            start.close()
            stopper.install(engine, server)
            url = options.address.url(sock)
            tasks = [asyncio.create_task(_announce(engine, server, url, on_ready))]
            running = engine.running
            if isinstance(running, SupervisedEngine):
                tasks.append(asyncio.create_task(_end_without_engine(running, server)))
            elif isinstance(running, LocalEngine):
                running.prepare_grammars()
            with _hook_limit(engine, server):
                await server.serve(sockets=[sock])
            for task in tasks:
                task.cancel()
        if isinstance(running, SupervisedEngine) and running.replicas.failure is not None:
            raise EngineStoppedError(running.replicas.failure)


def _make_engine(config: EngineConfig, options: ServeOptions, progress: Progress) -> EngineShell:
    if not options.engine_process:
        refuse_replicas(config)
        return build_engine(config, progress)
    return build_supervised_engine(
        config,
        progress,
        stall_timeout=options.settings.stall_timeout,
        max_restarts=options.max_engine_restarts,
    )


def _hook_limit(engine: EngineShell, server: uvicorn.Server) -> MainThreadLimit:
    """Limits the parsers and the router, which block the event loop while they run."""
    parsers = server.config.app.state.context.parsers.guards.all  # type: ignore[union-attr]
    running = engine.running
    router = running.router_guards if isinstance(running, SupervisedEngine) else ()
    return MainThreadLimit((*parsers, *router), HOOK_SECONDS)


async def _end_without_engine(engine: SupervisedEngine, server: uvicorn.Server) -> None:
    """End the server once its engine is not restarted any more."""
    await engine.replicas.wait_given_up()
    server.should_exit = True
    await asyncio.sleep(LAST_WORDS)
    server.force_exit = True


async def _announce(
    engine: EngineClient,
    server: uvicorn.Server,
    url: str,
    on_ready: Callable[[EngineClient, str], None],
) -> None:
    while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
        await asyncio.sleep(0.01)
    gc.freeze()  # imported modules stay: looking through them again would hold up the event loop
    on_ready(engine, url)


def configure_logging(level: str, *, as_json: bool = False) -> logging.Handler:
    """Log the "tokenmill" logger, and warnings of others, to stderr, one line per event."""
    handler = log_handler()
    handler.setFormatter(JsonFormatter() if as_json else log_formatter())
    handler.addFilter(Throttle())
    others = ("uvicorn.error", "asyncio", "opentelemetry")
    for name, at_least in (("tokenmill", level), *((other, "WARNING") for other in others)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]  # replaces the handler of `cli`, which shows warnings only
        logger.setLevel(at_least.upper())
        logger.propagate = False
    return handler
