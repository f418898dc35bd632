"""Messages, in msgpack, of all child processes that compute: about their start, and refusals.

Both sides come from the same installation, so messages have no version.
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, array_like=True, frozen=True, tag=True):
    """A message. Its name goes first, then its fields in order."""


class Stage(Message, frozen=True):
    """Progress of the start: a stage, and the fraction of it that is done."""

    name: str
    fraction: float


class NotStarted(Message, frozen=True):
    """The engine or the worker cannot be started. The process ends."""

    error: str
    """Name of a class in core/errors.py."""
    text: str


class Refused(Message, frozen=True):
    """A request was not accepted. The fields after its number are those of the exception."""

    number: int
    error: str
    text: str
    param: str | None = None
    retry_after: float = 1.0


encode = msgspec.msgpack.Encoder().encode
