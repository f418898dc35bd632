"""An engine in this process, behind the same API as a server's."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ....app import create_app
from .transport import Reply

if TYPE_CHECKING:
    from .....core.shell.engine_shell import EngineShell


class EngineTransport:
    """Sends requests to an engine of this process, through the same app that serves HTTP.

    The engine runs on `loop`, in another thread.
    """

    place = "this process"

    def __init__(self, engine: EngineShell, loop: asyncio.AbstractEventLoop) -> None:
        self._app = create_app(engine)
        self._loop = loop

    def send(self, path: str, body: bytes | None = None) -> Reply:
        exchange = _Exchange(body or b"")
        scope = {
            "type": "http",
            "method": "GET" if body is None else "POST",
            "path": f"/v1{path}",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        work = self._app(scope, exchange.receive, exchange.send)
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        running.add_done_callback(exchange.end)
        try:
            return Reply(exchange.status(), exchange.lines(running))
        except BaseException:
            running.cancel()
            raise


class _Exchange:
    """One request of an ASGI app, read in another thread than that of the app."""

    def __init__(self, body: bytes) -> None:
        self._request = [body]
        self._pieces: queue.SimpleQueue[int | bytes | BaseException | None] = queue.SimpleQueue()
        """The status, the pieces of the body, and at the end None, or the error that ended the app
        before."""

    async def receive(self) -> dict[str, Any]:
        """The request's body, once. The client leaves by cancelling the app."""
        if not self._request:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self._request.pop(), "more_body": False}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._pieces.put(message["status"])
            return
        self._pieces.put(message["body"])
        if not message.get("more_body", False):
            self._pieces.put(None)

    def end(self, running: Future[None]) -> None:
        """Called when the app has ended."""
        self._pieces.put(None if running.cancelled() else running.exception())

    def status(self) -> int:
        """Wait for the head of the answer."""
        found = self._next()
        assert isinstance(found, int)
        return found

    def lines(self, running: Future[None]) -> Generator[bytes, None, None]:
        rest, is_read = b"", False
        try:
            while (piece := self._next()) is not None:
                assert isinstance(piece, bytes)
                *lines, rest = (rest + piece).split(b"\n")
                yield from lines
            is_read = True
            yield rest
        finally:
            if not is_read:
                running.cancel()

    def _next(self) -> int | bytes | None:
        found = self._pieces.get()
        if isinstance(found, BaseException):
            raise found
        return found


@contextmanager
def running_loop(engine: EngineShell) -> Iterator[asyncio.AbstractEventLoop]:
    """Start an engine on an event loop in a thread, so that this one can wait for keys.

    A Ctrl-C while the model loads does not wait for the thread. Raises ConfigError.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tokenmill-chat", daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(engine.start(), loop).result()
    try:
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(engine.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
