"""Messages between two processes through shared memory: two rings, and a counter of signs of life.

The memory is a file without a name, so the system removes it when both processes have ended. A
socket wakes the reader. `Channel` uses both.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import struct
import tempfile
from contextlib import suppress
from typing import IO, Final

from .frames import MAX_BYTES, receive_exactly

HEADER = struct.Struct("!cI?")
"""Sent over the socket before each message: its kind, its length, and whether it is in the ring. If
not, the message follows on the socket."""
BEATS_BYTES = 64
"""The counter of signs of life, alone in its cache line."""
COUNTER_BYTES = 64
RING_BYTES = 1 << 20
"""Size of the ring of each direction. The plan of a decode step has 100 bytes per request. Messages
that do not fit go over the socket."""
TOTAL_BYTES = BEATS_BYTES + 2 * (COUNTER_BYTES + RING_BYTES)


class Ring:
    """One direction of a shared memory, with one writer and one reader.

    One machine word counts all bytes that were ever written, another one all that were read. Each
    word is written by one side only. On some CPUs the words do not order other accesses to memory.
    So a reader reads only after a message over a socket has announced the bytes: the system's calls
    order the accesses.
    """

    def __init__(self, memory: memoryview) -> None:
        self._counts = memory[:16].cast("Q")
        self._data: Final = memory[COUNTER_BYTES:]
        self._size = len(self._data)

    @property
    def num_free(self) -> int:
        return self._size - (self._counts[0] - self._counts[1])

    def write(self, data: bytes) -> None:
        written = self._counts[0]
        at = written % self._size
        first = min(len(data), self._size - at)
        self._data[at : at + first] = data[:first]
        self._data[: len(data) - first] = data[first:]
        self._counts[0] = written + len(data)

    def read(self, num_bytes: int) -> bytes:
        read = self._counts[1]
        at = read % self._size
        first = min(num_bytes, self._size - at)
        found = bytes(self._data[at : at + first]) + bytes(self._data[: num_bytes - first])
        self._counts[1] = read + num_bytes
        return found


class SharedMemory:
    """The memory that two processes share."""

    def __init__(self, mapped: memoryview) -> None:
        """`mapped`: TOTAL_BYTES of shared memory."""
        self._beats = mapped[:8].cast("Q")
        end = BEATS_BYTES + COUNTER_BYTES + RING_BYTES
        self.to_child, self.to_parent = Ring(mapped[BEATS_BYTES:end]), Ring(mapped[end:])

    @property
    def num_beats(self) -> int:
        """Number of signs of life of the child."""
        return self._beats[0]

    def beat(self) -> None:
        """Give a sign of life. Only the child calls it."""
        self._beats[0] += 1


def share_memory(sock: socket.socket) -> SharedMemory:
    """Make a shared memory, and send it to the process at the other end of a socket."""
    return SharedMemory(share_bytes(sock, TOTAL_BYTES))


def receive_memory(sock: socket.socket) -> SharedMemory:
    """Receive the memory that the parent shares. Raises EOFError if the parent is gone."""
    return SharedMemory(receive_bytes(sock))


def share_bytes(sock: socket.socket, num_bytes: int) -> memoryview:
    """Make shared memory of zeros, and send it to the process at the other end of a socket."""
    with unnamed_file() as file:
        try:
            os.truncate(file.fileno(), num_bytes)
        except OSError as error:
            if error.errno == errno.EFBIG:
                error.strerror = "the limit of the size of files (ulimit -f) is too low"
            raise
        with suppress(ConnectionError):  # the process has ended, as later messages will show
            socket.send_fds(sock, [b"m"], [file.fileno()])
        return memoryview(mmap.mmap(file.fileno(), num_bytes))


def receive_bytes(sock: socket.socket) -> memoryview:
    """Receive the memory of `share_bytes`. Raises EOFError if the parent is gone."""
    data, handles, _, _ = socket.recv_fds(sock, 1, 1)
    if not data:
        raise EOFError
    try:
        return memoryview(mmap.mmap(handles[0], 0))
    finally:
        os.close(handles[0])


def unnamed_file() -> IO[bytes]:
    """An empty file, in memory if possible. Only processes that get its descriptor can open it."""
    if hasattr(os, "memfd_create"):  # /dev/shm is small in containers, and may be full
        return os.fdopen(os.memfd_create("tokenmill"), "r+b")
    return tempfile.TemporaryFile()


class Channel:
    """Sends and receives messages, each with a kind of one byte.

    One thread may send while another one receives.
    """

    def __init__(self, sock: socket.socket, outgoing: Ring, incoming: Ring) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._outgoing, self._incoming = outgoing, incoming

    def has_room(self, num_bytes: int) -> bool:
        """Whether `send` of a message of this length does not wait for the reader."""
        return num_bytes <= self._outgoing.num_free

    def send(self, kind: bytes, message: bytes) -> None:
        """Send a message. Raises EOFError if the other side is gone."""
        if len(message) > MAX_BYTES:
            raise ValueError(f"a message of {len(message)} bytes is too long")
        fits = self.has_room(len(message))
        if fits:
            self._outgoing.write(message)
        try:
            self._sock.sendall(HEADER.pack(kind, len(message), fits))
            if not fits:
                self._sock.sendall(message)
        except OSError as error:
            raise EOFError from error

    def receive(self) -> tuple[bytes, bytes]:
        """Wait for a message; returns its kind and content. Raises EOFError if no more come."""
        try:
            header = self._sock.recv(HEADER.size, socket.MSG_WAITALL)
            if len(header) < HEADER.size:
                raise EOFError
            kind, length, fits = HEADER.unpack(header)
            if fits:
                return kind, self._incoming.read(length)
            return kind, receive_exactly(self._sock, length)
        except OSError as error:
            raise EOFError from error
