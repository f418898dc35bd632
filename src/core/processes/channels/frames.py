"""Messages over a stream socket: four bytes of length, then that many bytes of msgpack."""

from __future__ import annotations

import socket
import struct
import time

LENGTH = struct.Struct("!I")
MAX_BYTES = 1 << 28
"""Longest message. A longer one means that the stream is damaged, or that a limit is missing."""
CHUNK = 1 << 16


def frame(message: bytes) -> bytes:
    """The bytes that carry a message."""
    if len(message) > MAX_BYTES:
        raise ValueError(f"a message of {len(message)} bytes is too long")
    return LENGTH.pack(len(message)) + message


class FrameReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes; returns the messages that are complete now.

        Raises ValueError for a message that is too long.
        """
        self._buffer += data
        messages: list[bytes] = []
        start = 0
        while len(self._buffer) >= start + LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer, start)
            if length > MAX_BYTES:
                raise ValueError(f"a message of {length} bytes is too long")
            end = start + LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(bytes(self._buffer[start + LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return messages


def send(sock: socket.socket, message: bytes) -> None:
    """Send one message on a blocking socket. Raises OSError if the other side is gone."""
    sock.sendall(frame(message))


def receive(sock: socket.socket, timeout: float | None = None) -> bytes:
    """Receive one message on a blocking socket.

    Raises TimeoutError after `timeout` seconds, and EOFError if the other side is gone.
    """
    end = None if timeout is None else time.monotonic() + timeout
    (length,) = LENGTH.unpack(receive_exactly(sock, LENGTH.size, end))
    if length > MAX_BYTES:
        raise ValueError(f"a message of {length} bytes is too long")
    return receive_exactly(sock, length, end)


def receive_exactly(sock: socket.socket, num_bytes: int, end: float | None = None) -> bytes:
    """Receive this many bytes on a blocking socket.

    Raises TimeoutError at the time `end` of the monotonic clock, and EOFError if the other side is
    gone.
    """
    received = bytearray()
    while len(received) < num_bytes:
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        try:
            data = sock.recv(min(CHUNK, num_bytes - len(received)))
        except ConnectionError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        received += data
    return bytes(received)
