"""When the next step is planned and launched: after the one before it, or while it is computed.

Read `OneByOne` first: it is the whole loop. `OneAhead` takes the same turns, but keeps the device
busy meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from ...engine.committing import RequestUpdate
from ...plan import StepPlan, StepResult
from .device import DeviceSteps

Deliver = Callable[[Sequence[RequestUpdate]], None]


class OneByOne:
    """Plan a step, compute it, commit it, deliver its tokens. The device waits for each delivery.

    For `--no-async-scheduling`.
    """

    num_open = 0
    """Number of steps that are launched and not committed."""

    def __init__(self, steps: DeviceSteps, may_plan: Callable[[], bool], deliver: Deliver) -> None:
        self._steps, self._may_plan, self._deliver = steps, may_plan, deliver

    async def take(self) -> bool:
        """Take a turn. False: there is nothing to compute now.

        Raises DeviceError if the device is lost.
        """
        plan = self._steps.plan() if self._may_plan() else None
        self._deliver(self._steps.core.take_updates())
        if plan is None:
            return False
        self._deliver(await self._steps.finish(plan, self._steps.launch(plan)))
        return True


class OneAhead:
    """Commit a step and launch the next one before the tokens are delivered; and launch a step
    while the device computes the one before it, if that one is a decode step. The device runs them
    in order. It has the methods of OneByOne."""

    def __init__(self, steps: DeviceSteps, may_plan: Callable[[], bool], deliver: Deliver) -> None:
        self._steps, self._may_plan, self._deliver = steps, may_plan, deliver
        self._open: deque[tuple[StepPlan, asyncio.Future[StepResult]]] = deque()

    @property
    def num_open(self) -> int:
        return len(self._open)

    async def take(self) -> bool:
        self._launch()
        self._deliver(self._steps.core.take_updates())
        if not self._open:
            return False
        updates = await self._steps.finish(*self._open.popleft())
        self._launch()
        self._deliver(updates)
        return True

    def _launch(self) -> None:
        """Open all plans that are allowed."""
        while self._may_launch() and (plan := self._steps.plan()) is not None:
            self._open.append((plan, self._steps.launch(plan)))

    def _may_launch(self) -> bool:
        """Whether another plan may be opened: only if every open plan is a plain decode step.

        A new request waits for all open plans. With a prompt among them it would wait for two long
        steps. If the model has stages, it waits for the first stage only.
        """
        if not self._may_plan():
            return False
        if self._steps.num_stages > 1:
            return True
        return all(grant.num_tokens == 1 for plan, _ in self._open for grant in plan.grants)
