"""The room for connections: at the limit, a new one takes the place of one that is not in use."""

from __future__ import annotations

from typing import Protocol

REFUSED_AT_ONCE = 8
"""Connections above the limit that get an answer. Any others are closed without one."""


class Guest(Protocol):
    """A connection that a Room counts and may close."""

    def hang_up(self) -> None:
        """Close at once, without an answer."""
        ...


class Room:
    """Counts a server's connections, and knows which of them wait for a request.

    Clients that open connections and send no whole request keep nobody else out: the oldest of them
    are closed first, then the connections that have waited longest for their next request.
    """

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._open: set[Guest] = set()
        self._silent: dict[Guest, None] = {}
        """Connections without a whole request, oldest first."""
        self._idle: dict[Guest, None] = {}
        """Connections after an answer; the one that has waited longest for a request is first."""

    def enter(self, guest: Guest) -> bool:
        """Add a new connection. False: requests are being answered on all others, so its request
        is to be refused."""
        if len(self._open) >= self._max_connections:
            self._make_room()
        num_open = len(self._open)
        self._open.add(guest)
        self._silent[guest] = None
        if num_open >= self._max_connections + REFUSED_AT_ONCE:
            guest.hang_up()
        return num_open < self._max_connections

    def begin_answer(self, guest: Guest) -> None:
        """A whole request has arrived, so the connection is in use."""
        self._silent.pop(guest, None)
        self._idle.pop(guest, None)

    def end_answer(self, guest: Guest) -> None:
        if guest in self._open:
            self._idle[guest] = None

    def leave(self, guest: Guest) -> None:
        """Remove a connection that is closed."""
        self._open.discard(guest)
        self.begin_answer(guest)

    def _make_room(self) -> None:
        guest = next(iter(self._silent), None) or next(iter(self._idle), None)
        if guest is not None:
            self.leave(guest)
            guest.hang_up()
