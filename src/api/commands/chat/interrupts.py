"""Ctrl-C as an exception where something waits for it, and nowhere else.

Anywhere else it would end the chat, or print the traceback of a library that was just cleaning up.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """Ignore Ctrl-C, except inside `ctrl_c_raised`."""
    before = signal.signal(signal.SIGINT, _ignore)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def ctrl_c_raised() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first Ctrl-C; the next ones come too late to stop anything."""
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, _raise)
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _ignore(number: int, frame: object) -> None:
    pass


def _raise(number: int, frame: object) -> None:
    signal.signal(signal.SIGINT, _ignore)
    raise KeyboardInterrupt
