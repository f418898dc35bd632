"""The code of plugins that runs while an engine or a server starts: imports, `register`, factories
and `lifespan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from time import monotonic
from types import FunctionType
from typing import Any

from .plugin_info import Source


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StartCall:
    """A call of a plugin's code that runs."""

    stage: str
    """For example "importing plugin 'chunked' (tokenmill 1.0)"."""
    thread: int
    """Id of its thread; 0: it also waits for the event loop, so it may not be interrupted."""
    begun: float = field(default_factory=monotonic)

    @property
    def seconds(self) -> float:
        return monotonic() - self.begun


class StartCalls:
    """The running calls of one process, the innermost last."""

    def __init__(self) -> None:
        self.running: list[StartCall] = []
        self.on_change: Callable[[], None] | None = None
        """Called when a call has begun or ended, in its thread."""

    def call(self, what: str, source: Source, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of a plugin. `what` is for example "importing"."""
        with self.run(what, source):
            return named_frame(_call, f"{what} {source}")(function, *arguments)

    @contextmanager
    def run(self, what: str, source: Source, *, waits: bool = False) -> Iterator[None]:
        """Note a call while a `with` block runs. `waits`: it waits for the event loop."""
        call = StartCall(stage=f"{what} {source}", thread=0 if waits else get_ident())
        self.running.append(call)
        self._report()
        try:
            yield
        finally:
            self.running.remove(call)
            self._report()

    def _report(self) -> None:
        if self.on_change is not None:
            self.on_change()


START_CALLS = StartCalls()
"""The calls that run in this process while plugins start."""


def named_frame(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A copy of a function whose frame has this name in stacks. The names of frames are all that is
    known about a process that hangs in native code and keeps Python's lock."""
    assert isinstance(function, FunctionType)
    return FunctionType(
        function.__code__.replace(co_name=name), function.__globals__, name, function.__defaults__
    )


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
