"""Drives an engine by hand, step by step, and records what every request gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from ..core.engine.committing import RequestUpdate
from ..core.engine.engine_core import EngineCore
from ..core.engine.request import Request
from ..core.interfaces import Executor, Pending
from ..core.members import TAKE_MEDIA
from ..core.outputs import FinishReason
from ..core.plan import StepPlan, StepResult, check_result
from .simulated.executor import SimulatedExecutor
from .simulated.pipeline import PlantedError

STEP_SECONDS = 0.01


class EngineDriver:
    """An engine and its executor, with a clock of their own; nothing runs unless it is called.

    With `checks` the engine's books are checked after every change.
    """

    def __init__(self, core: EngineCore, executor: Executor, *, checks: bool = True) -> None:
        self.core = core
        self.executor = executor
        self.now = 0.0
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}
        self.reasons: dict[str, FinishReason] = {}
        self.plans: list[StepPlan] = []
        self.results: list[StepResult] = []
        self.open: deque[StepPlan] = deque()
        """Plans that are not committed yet, the oldest first."""
        self.pending: deque[Pending] = deque()
        """Their results to come."""
        self._checks = checks

    def queue(self, requests: Sequence[Request]) -> None:
        """Queue a request and its siblings. Raises what the engine raises."""
        self.core.add(requests, self.now)
        if self.core.media is not None:
            TAKE_MEDIA.of(self.executor)(self.core.media.take_new())
        for request in requests:
            self.requests[request.engine_id] = request
            self.tokens[request.engine_id] = []

    def plan(self) -> StepPlan | None:
        """Ask for a plan; a step that is discarded must change nothing."""
        before, num_ended = self._digest(), len(self.reasons)
        plan = self.core.plan(self.now)
        self.check()
        if plan is not None:
            self.plans.append(plan)
            self.open.append(plan)
            self.pending.append(self.executor.launch(plan))
        elif len(self.reasons) == num_ended:
            assert self._digest() == before, "a discarded step changed something"
        return plan

    def commit(
        self, amend: Callable[[StepPlan, StepResult], StepResult] | None = None
    ) -> list[RequestUpdate]:
        """Commit the result of the oldest open plan, amended if that is asked for, or its error."""
        plan, pending = self.open.popleft(), self.pending.popleft()
        try:
            result = pending.result()
        except PlantedError as error:
            return self._close(self.core.fail(plan, str(error), self.now))
        if amend is not None:
            result = amend(plan, result)
        check_result(result, plan)
        self.results.append(result)
        return self._close(self.core.commit(plan, result, self.now))

    def fail(self) -> list[RequestUpdate]:
        """The step of the oldest open plan raises, on a simulated executor."""
        plan = self.open.popleft()
        self.pending.popleft()
        assert isinstance(self.executor, SimulatedExecutor)
        self.executor.crash(plan)
        return self._close(self.core.fail(plan, "planted", self.now))

    def step(self) -> StepPlan | None:
        """Let time go on, plan, and commit the oldest open plan."""
        self.now += STEP_SECONDS
        plan = self.plan()
        if self.open:
            self.commit()
        return plan

    def run(self, arriving: Sequence[Request] = (), *, per_step: int = 2) -> None:
        """Step until nothing is left to do; `per_step` requests arrive before each step."""
        to_come, num_idle = list(reversed(arriving)), 0
        while to_come or self.core.has_work:
            for _ in range(min(per_step, len(to_come))):
                self.queue([to_come.pop()])
            num_idle = 0 if self.step() else num_idle + 1
            assert num_idle < 1000, "there is work, and nothing is planned"
        self.check()

    def check(self) -> None:
        """Record what the engine reports; its books must agree."""
        self.note(self.core.take_updates())
        if self._checks:
            self.core.check()

    def note(self, updates: Sequence[RequestUpdate]) -> None:
        """Record tokens and ends."""
        for update in updates:
            assert update.engine_id not in self.reasons, "an update after the end"
            self.tokens[update.engine_id] += update.token_ids
            if update.finish_reason is not None:
                self.reasons[update.engine_id] = update.finish_reason

    def _close(self, updates: list[RequestUpdate]) -> list[RequestUpdate]:
        self.note(updates)
        self.check()
        return updates

    def _digest(self) -> tuple[object, object] | None:
        if not self._checks:
            return None
        return self.core.pool.digest(), self.core.host_pool.digest()
