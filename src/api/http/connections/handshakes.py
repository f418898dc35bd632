"""TLS handshakes: limited in time, and counted among the open connections."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from functools import partial
from typing import Any

from .connection import Connection
from .room import Room

HANDSHAKE_SECONDS = 10.0
"""Maximum time from a client's connection to the end of its TLS handshake."""


class Handshake(asyncio.Protocol):
    """A client until its TLS handshake is complete. Then a Connection speaks HTTP with it.

    asyncio's own TLS server gives a client to its protocol only after the handshake, so that nobody
    would count the clients that never complete it.
    """

    def __init__(
        self, context: ssl.SSLContext, room: Room, *, server_state: Any, **options: Any
    ) -> None:
        """The other arguments are those that uvicorn gives to a Connection."""
        self._context = context
        self._room = room
        self._make = partial(Connection, room, server_state=server_state, **options)
        self._open = server_state.connections
        self._received = bytearray()
        self._is_lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        if not self._room.enter(self):
            transport.abort()
            return
        transport.pause_reading()
        self._open.add(self)
        self._task = asyncio.get_running_loop().create_task(self._shake_hands())

    def data_received(self, data: bytes) -> None:
        """Keep what a client has sent together with the end of its handshake."""
        self._received += data

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        self._room.leave(self)

    def shutdown(self) -> None:
        """Hang up, because the server ends."""
        self.hang_up()

    def hang_up(self) -> None:
        self._transport.abort()

    async def _shake_hands(self) -> None:
        tls = None
        try:
            with suppress(OSError):  # no handshake, not in time, or the client has left
                tls = await asyncio.get_running_loop().start_tls(
                    self._transport,
                    self,
                    self._context,
                    server_side=True,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                )
        finally:
            self._open.discard(self)
            self._room.leave(self)
        if tls is not None and not self._is_lost:
            self._hand_over(tls)

    def _hand_over(self, tls: asyncio.Transport) -> None:
        http = self._make()
        tls.set_protocol(http)
        http.connection_made(tls)
        if self._received:
            http.data_received(bytes(self._received))
