"""SIGTERM and Ctrl-C: the first signal drains the server, the second always ends it."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import NoReturn, Self

import uvicorn

from ..core.contract.client import EngineClient
from ..core.log import get_logger
from ..core.shell.local_engine import DEVICE_THREAD
from .http.connections.connection import Connection

LAST_WORDS = 1.0
"""Seconds to send the last chunks after the engine has aborted all requests."""
POLL_SECONDS = 0.05
CLOSING_SECONDS = 7.0
"""Seconds until the process ends after the second signal. The engine's own limit is shorter."""
DRAINING_SECONDS = 2 * CLOSING_SECONDS
"""Seconds until the process ends after the first signal and the time of accepted requests: the
engine aborts requests, and closes. Only an event loop that hangs takes longer."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
log = get_logger("api")


class Stopper:
    """Stops a server by signals.

    The first signal refuses new requests and finishes the accepted ones. The second stops at once.
    A thread reads the signals, because the event loop may hang in a plugin's hook.
    """

    def __init__(self, timeout: float) -> None:
        """`timeout`: seconds that accepted requests get to finish."""
        self._timeout = timeout
        self._restore = ExitStack()
        self._draining: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._restore.close()

    def install(self, engine: EngineClient, server: uvicorn.Server) -> None:
        """Handle both signals until the end of the `with` block. Call it in the main thread."""
        loop = asyncio.get_running_loop()
        reader, writer = socket.socketpair()
        self._restore.enter_context(writer)  # closing it ends the thread
        writer.setblocking(False)
        previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._restore.callback(signal.set_wakeup_fd, previous)
        for number in SIGNALS:
            self._restore.callback(signal.signal, number, signal.signal(number, _leave_to_thread))

        def drain() -> None:
            self._draining = asyncio.create_task(self._drain(engine, server))

        def stop() -> None:
            server.should_exit = True
            _cut(server)

        arguments = reader, loop, self._timeout, drain, stop
        threading.Thread(
            target=_listen, args=arguments, name="tokenmill-signals", daemon=True
        ).start()

    def call_at_hangup(self, react: Callable[[], None]) -> None:
        """Call a function in the event loop at each SIGHUP, until the end of the `with` block."""
        loop = asyncio.get_running_loop()

        def forward(number: int, frame: object) -> None:
            loop.call_soon_threadsafe(react)

        self._restore.callback(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, forward))

    async def _drain(self, engine: EngineClient, server: uvicorn.Server) -> None:
        num_requests = len(server.server_state.tasks)
        log.info("draining", timeout=self._timeout, num_requests=num_requests)
        end = time.monotonic() + self._timeout
        try:
            await engine.drain(self._timeout)
            # A plugin's route may answer without the engine.
            while (  # noqa: ASYNC110 (uvicorn has no event for it)
                time.monotonic() < end and any(one.is_answering for one in _connections(server))
            ):
                await asyncio.sleep(POLL_SECONDS)
        except Exception:
            log.exception("drain_failed")
        finally:
            server.should_exit = True
        await asyncio.sleep(LAST_WORDS)  # streams send their last chunk and [DONE]
        _cut(server)


def _connections(server: uvicorn.Server) -> Sequence[Connection]:
    return [one for one in server.server_state.connections if isinstance(one, Connection)]


def _cut(server: uvicorn.Server) -> None:
    """End the answers that are not complete, and do not wait for their handlers."""
    for connection in _connections(server):
        connection.cut()
    server.force_exit = True


def _listen(
    reader: socket.socket,
    loop: asyncio.AbstractEventLoop,
    timeout: float,
    drain: Callable[[], None],
    stop: Callable[[], None],
) -> None:
    with reader, suppress(RuntimeError):  # the loop is closed: the server has ended
        if not _next_signal(reader):
            return
        loop.call_soon_threadsafe(drain)
        with suppress(TimeoutError):
            if not _next_signal(reader, timeout + DRAINING_SECONDS):
                return
            loop.call_soon_threadsafe(stop)
            # A thread that hangs would still keep the process alive.
            if not _next_signal(reader, CLOSING_SECONDS):
                time.sleep(CLOSING_SECONDS)
        _kill("the server did not end in time after a signal")


def leave_if_hung() -> None:
    """End the process if a device thread still runs: a normal exit would wait for it forever."""
    for thread in threading.enumerate():
        if thread.name.startswith(DEVICE_THREAD):
            thread.join(LAST_WORDS)
            if thread.is_alive():
                _kill("the device did not end its last step")


def _kill(reason: str) -> NoReturn:
    log.error("killed", reason=reason)
    os._exit(128 + signal.SIGTERM)


def _next_signal(reader: socket.socket, seconds: float = math.inf) -> bool:
    """Wait for one of SIGNALS. False means that the server has ended. Raises TimeoutError.

    Other signals arrive, too: a timer's, several times a second.
    """
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        reader.settimeout(None if math.isinf(left) else left)
        if not (number := reader.recv(1)):
            return False
        if number[0] in SIGNALS:
            return True


def _leave_to_thread(number: int, frame: object) -> None:
    """Do nothing: Python has already written the signal's number to the wake-up socket."""
