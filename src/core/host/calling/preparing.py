"""Calls the plugins that ask other machines before `admit` decides about a request."""

from __future__ import annotations

import asyncio
import inspect

from ...contract.policy import Arrival
from ...errors import CONTAINED, RequestFailedError
from .guard import Guard

WAIT_SECONDS = 5.0
"""The longest wait for one plugin. The client waits, too, and has the prompt in memory."""


class Preparations:
    """All implementations of `before_admit`, in calling order.

    Like an admission, one that fails is never taken out: `admit` would miss what it needs.
    """

    def __init__(self, guards: tuple[Guard, ...]) -> None:
        self.guards = guards

    async def __call__(self, arrival: Arrival) -> None:
        """Call one after the other, and await their answers.

        Raises RequestFailedError if one fails. A cancelled task cancels what it awaits.
        """
        for guard in self.guards:
            try:
                answer = guard.call(arrival)
            except CONTAINED as error:
                raise _failed(guard, error) from error
            if answer is None:
                continue
            if not inspect.isawaitable(answer):
                raise _failed(guard, f"the answer must be None or an awaitable, got {answer!r}")
            try:
                async with asyncio.timeout(WAIT_SECONDS) as limit:
                    await answer
            except CONTAINED as error:
                if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                    raise
                late = f"the wait took longer than {WAIT_SECONDS:g} seconds"
                raise _failed(guard, late if limit.expired() else error) from error


def _is_cancelled() -> bool:
    """Whether somebody cancelled this task. Otherwise, a CancelledError comes from the plugin, for
    example from a task of its own, and the sender must get an answer."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _failed(guard: Guard, error: BaseException | str) -> RequestFailedError:
    guard.fail(error)
    return RequestFailedError(f"the request could not be checked: {guard.source} failed")
