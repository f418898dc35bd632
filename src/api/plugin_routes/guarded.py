"""Runs coroutines of plugins step by step, so that each step is timed, and interrupted if it hangs.

An exception is a failure of the plugin, unless it comes from the server: then it is the client's.
"""

from __future__ import annotations

from asyncio import CancelledError, sleep
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from types import coroutine
from typing import Any, TypeVar

from ...core.errors import (
    CONTAINED_WHILE_WAITING,
    EngineStoppedError,
    InvalidRequestError,
    OverloadedError,
    PluginError,
    RequestFailedError,
)
from ...core.host.calling.guard import Guard
from ..http.errors import APIError
from ..serving.sse import encode

T = TypeVar("T")
_FOR_CLIENTS = (
    APIError,
    EngineStoppedError,
    InvalidRequestError,
    OverloadedError,
    RequestFailedError,
)


async def guarded(guard: Guard, begin: Callable[[], Awaitable[T]]) -> T:
    """Begin a plugin's work, and wait for it. Raises RequestFailedError if the plugin fails."""
    try:
        return await _in_steps(guard, begin)
    except _FOR_CLIENTS:
        raise
    except CONTAINED_WHILE_WAITING as error:
        guard.fail(error)
        raise RequestFailedError(f"{guard.source} failed in {guard.hook!r}") from error


async def guarded_pieces(guard: Guard, pieces: AsyncIterator[object]) -> AsyncIterator[bytes]:
    """The pieces of a plugin's stream; those that are not bytes become lines of JSON.

    Raises RequestFailedError if the plugin fails.
    """
    try:
        while (piece := await guarded(guard, lambda: _next(pieces))) is not None:
            yield piece
            # Pieces may come without a wait, and the others and a client that leaves need the loop.
            await sleep(0)
    finally:
        if (close := getattr(pieces, "aclose", None)) is not None:
            await guarded(guard, close)


async def _next(pieces: AsyncIterator[object]) -> bytes | None:
    async for piece in pieces:
        return piece if isinstance(piece, bytes) else encode(piece) + b"\n"
    return None


@coroutine
def _in_steps(guard: Guard, begin: Callable[[], Awaitable[T]]) -> Generator[Any, Any, T]:
    """Wait for the work, each step of which runs in the guard.

    A CancelledError that nobody has thrown into it is its own failure: it cancels no request.
    """
    is_cancelled = False
    try:
        steps: Any = begin().__await__()
        step, value = steps.send, None
        while True:
            try:
                waits_for = guard.resume(step, value)
            except StopIteration as end:
                found: T = end.value
                return found
            try:
                step, value = steps.send, (yield waits_for)
            except BaseException as error:
                is_cancelled = isinstance(error, CancelledError | GeneratorExit)
                step, value = steps.throw, error
    except (CancelledError, GeneratorExit) as error:
        if is_cancelled:
            raise
        raise PluginError(f"it raised {type(error).__name__}") from error
