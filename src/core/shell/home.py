"""The event loop and the process of an engine. Elsewhere, its callers would wait forever."""

from __future__ import annotations

import asyncio
import os

from ..errors import EngineStoppedError, WrongContextError

DRAINING = "the engine is shutting down and accepts no new requests"


class Process:
    """The process in which this object was made."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        """False in a fork of the process, which has none of its threads."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise WrongContextError in a fork of the process."""
        if not self.is_this:
            raise WrongContextError(
                f"this process was forked from process {self._pid}, which has the engine's "
                "threads: make an engine here, or start processes with 'spawn'"
            )


class Home:
    """The event loop in which an engine was started, and its process."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """Make the running event loop the home, unless there is one.

        Raises WrongContextError without an asyncio event loop, as under trio, and outside the home.
        """
        if self._loop is None:
            self._loop, self._process = _running_loop(), Process()
        self.check()

    def check(self) -> None:
        """Raise WrongContextError in another event loop or process; before `enter`, nowhere."""
        if self._process is None:
            return
        self._process.check()
        if _running_loop() is not self._loop:
            raise WrongContextError(
                "the engine was started in another event loop: use it in the same asyncio.run, or "
                "call asyncio.run_coroutine_threadsafe with its loop"
            )


class Life:
    """The event loop of an engine, and how far its end is."""

    def __init__(self) -> None:
        self.home = Home()
        self.is_draining = False
        self.is_closed = False

    @property
    def is_ending(self) -> bool:
        """Whether it takes no more requests."""
        return self.is_draining or self.is_closed

    def check_accepting(self) -> None:
        """Raise EngineStoppedError if it takes no more requests."""
        if self.is_ending:
            raise EngineStoppedError(DRAINING)


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise WrongContextError(
            "the engine needs asyncio, and no asyncio event loop runs here: use asyncio.run, or "
            "LLM in a thread (under trio: trio.to_thread.run_sync)"
        ) from None
