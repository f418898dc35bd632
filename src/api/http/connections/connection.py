"""A client's connection: uvicorn's, with a deadline for headers and a limit on connections."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import APIError, error_body, error_response, shutting_down
from ..logs.request_log import answer_stats
from .heads import StrictConnection
from .room import Room

HEAD_SECONDS = 10.0
"""Maximum time from the first byte of a request to the end of its headers."""
STALL_SECONDS = 30.0
"""Maximum time in which a client takes nothing of the data that waits for it."""
FIRST_PROBE_SECONDS = 0.05
"""Time after which a second write finds the reset that answered the first one."""
PROBE_SECONDS = 5.0
READ_BYTES = 4 << 10
"""Bytes that are parsed in one turn of the event loop. h11 takes a millisecond for 1 KB of chunks
of one byte, and less for everything else."""
_BUFFER = memoryview(bytearray(READ_BYTES))
"""The bytes just received. All connections share it, because it is copied in the same turn."""
MAX_DISCARDED_BYTES = 256 << 10
"""Bytes of a refused request that are read when its connection is closed."""


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """Speaks HTTP/1.1 with one client; errors that uvicorn itself sends have OpenAI's shape."""

    def __init__(self, room: Room, **options: Any) -> None:
        """The other arguments are uvicorn's."""
        super().__init__(**options)
        self._room = room
        self.conn: StrictConnection = StrictConnection()
        self._head_deadline: asyncio.TimerHandle | None = None
        self._next_probe: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Any unsent byte stops the stream and starts the deadline of a stalled reader. With 0, a
        # TLS transport of asyncio stops it without an unsent byte, too.
        transport.set_write_buffer_limits(high=0 if self.scheme == "http" else 1)
        if not self._room.enter(self):
            self.app = _refuse
        self._watch_head()

    def hang_up(self) -> None:
        """Close at once, because a new connection needs the room."""
        self.transport.abort()

    @property
    def is_answering(self) -> bool:
        """Whether a request has arrived in full, and the client takes the answer that is due."""
        cycle = self.cycle
        if cycle is None or cycle.more_body or self.flow.write_paused:
            return False
        return not cycle.response_complete and not cycle.disconnected

    def cut(self) -> None:
        """End an answer that is not complete, because the server stops. Its handler sees a client
        that has left; a client that has no part of the answer gets an error."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return
        self._say_why("the server stopped")
        if cycle.response_started or self.flow.write_paused:
            self.transport.abort()
        else:
            self._refuse_by(shutting_down("the server is shutting down and ended this request"))
        cycle.disconnected = True
        cycle.message_event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.leave(self)
        self._forget_deadline()
        self._cancel_stall()
        if self._next_probe is not None:
            self._next_probe.cancel()
        self._say_why("the client closed the connection")
        if exc is None:
            self._discard_unread()
        super().connection_lost(exc)

    def _say_why(self, reason: str) -> None:
        """Keep the reason why an answer is not complete, for the log. The first reason counts."""
        if self.cycle is not None and not self.cycle.response_complete:
            stats = answer_stats(self.cycle.scope)  # type: ignore[arg-type]
            stats.error = stats.error or reason

    def _discard_unread(self) -> None:
        """Read the rest of a refused request. The system resets a connection that is closed with
        unread data, and then the client may lose the answer."""
        with suppress(OSError):  # there is none
            os.read(self.transport.get_extra_info("socket").fileno(), MAX_DISCARDED_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The memory into which the transport reads next."""
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_BUFFER[:nbytes]))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def handle_events(self) -> None:
        """Parse the bytes that have arrived, even if the last answer is not complete yet."""
        super().handle_events()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._room.begin_answer(self)

    def on_response_complete(self) -> None:
        self._room.end_answer(self)
        super().on_response_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether to keep the connection, because the client has ended only its own side.

        A client that leaves looks the same. A write shows the difference: it is answered with a
        reset. HTTP/1.0 has no message that may be written at any time.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        if self.scheme == "https" or cycle.scope["http_version"] == "1.0":
            return False
        cycle.keep_alive = False
        self._probe(FIRST_PROBE_SECONDS)
        return True

    def _probe(self, seconds: float) -> None:
        """Write bytes that clients ignore, and again later: "100 Continue", or an SSE comment."""
        cycle = self.cycle
        if self.transport.is_closing() or cycle.response_complete:
            return
        if not cycle.response_started:
            event: h11.Event = h11.InformationalResponse(status_code=100, headers=[])
            self.transport.write(self.conn.send(event) or b"")
        elif not self.flow.write_paused:  # only streams last longer than a moment
            self.transport.write(self.conn.send(h11.Data(data=b":\n\n")) or b"")
        self._next_probe = self.loop.call_later(seconds, self._probe, PROBE_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_stall()

    def _watch_reader(self) -> None:
        """Hang up, unless some of the unsent data is taken by the client in time."""
        unsent = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(STALL_SECONDS, self._abort_unless_less_than, unsent)

    def _abort_unless_less_than(self, unsent: int) -> None:
        if self.transport.get_write_buffer_size() >= unsent:
            self._say_why(f"the client read nothing for {STALL_SECONDS:g} s")
            self.transport.abort()
        else:
            self._watch_reader()

    def _cancel_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request with the reason, and close."""
        self._refuse_by(self.conn.refusal)

    def _refuse_by(self, error: APIError) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = error_body(error)
            head = h11.Response(
                status_code=error.status,
                headers=[
                    ("content-type", "application/json"),
                    ("content-length", str(len(body))),
                    ("connection", "close"),
                ],
                reason=HTTPStatus(error.status).phrase.encode(),
            )
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch_head(self) -> None:
        """Start or cancel the deadline for a request's headers.

        It covers the time from the first byte of a head. uvicorn's keep-alive timer covers the time
        between requests.
        """
        if self.conn.their_state is not h11.IDLE:
            self._forget_deadline()
        elif self._head_deadline is None:
            self._head_deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _forget_deadline(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    error = APIError(
        503,
        "this server has too many connections; try again later",
        code="overloaded",
        retry_after=1,
    )
    answer = error_response(error)
    answer.headers["Connection"] = "close"
    await answer(scope, receive, send)
