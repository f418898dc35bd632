"""Steps on the device: launched, awaited and committed, and how long they take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ...engine.committing import RequestUpdate
from ...engine.engine_core import EngineCore
from ...errors import CONTAINED, DeviceError, RequestFailedError
from ...interfaces import Executor
from ...log import get_logger
from ...members import TAKE_MEDIA
from ...plan import StepPlan, StepResult, check_result
from ...processes.watching.board import Board
from .shown import ShownSteps
from .times import StepTimes

log = get_logger("engine")

MAX_NAMED = 8
"""Maximum number of requests that the log line of a failed step names."""


class DeviceSteps:
    """The steps of one EngineCore, computed by its executor on the device thread."""

    def __init__(
        self,
        core: EngineCore,
        executor: Executor,
        device: ThreadPoolExecutor,
        board: Board,
        load_seconds: float,
        suspects: Mapping[str, object],
    ) -> None:
        """`board`, `load_seconds`: see StepLoop. `suspects`: fields of log events about steps that
        failed."""
        self.core = core
        self.num_stages = executor.info.num_stages
        self.numbers: dict[str, int] = {}
        """The numbers of requests on the board, by engine id."""
        self._executor, self._device, self._board = executor, device, board
        self._suspects = suspects
        self._last_progress = time.monotonic()
        self._times = StepTimes(load_seconds)
        self._planned: dict[int, float] = {}
        """Seconds that planning took, by the step's id."""
        self._computed: dict[int, tuple[float, float]] = {}
        """When the device began and ended a step that it has computed, by the step's id."""
        last = board.last_steps
        self._shown = None if core.log is None or last is None else ShownSteps(core.log, last)
        self._num_tokens = 0
        """Tokens of the step that the device computes."""

    def plan(self) -> StepPlan | None:
        """The next plan; None if there is nothing to compute now."""
        began = time.monotonic()
        plan = self.core.plan(began)
        if plan is not None and self.core.log is not None:
            self._planned[plan.step_id] = time.monotonic() - began
        return plan

    def launch(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        """Launch a step. If the launch raises, the step counts as one that raised."""
        found: asyncio.Future[StepResult] = asyncio.get_running_loop().create_future()
        self._show_launch(plan)
        try:
            result = self._executor.launch(plan).result
        except CONTAINED as error:
            found.set_exception(_as_exception(error))
        else:  # run_in_executor would chain a second future to this one
            self._device.submit(self._compute, plan.step_id, result, found)
        return found

    async def finish(
        self, plan: StepPlan, future: asyncio.Future[StepResult]
    ) -> Sequence[RequestUpdate]:
        """Wait for the oldest launched step, and commit it. If it raises, its requests are computed
        again.

        Raises DeviceError if the device is lost.
        """
        self._num_tokens = plan.num_tokens
        plan_seconds = self._planned.pop(plan.step_id, 0.0)
        self.show_work(True)
        try:
            result = await future
            self._log_time(plan, plan_seconds)
            check_result(result, plan)
        except DeviceError:
            self.core.fail(plan, "the device failed", time.monotonic())
            raise
        except Exception as error:
            self._log_failure(plan, error)
            reason = "the step that computed this request failed"
            updates = self.core.fail(plan, reason, time.monotonic())
        else:
            began = time.monotonic()
            updates = self.core.commit(plan, result, began)
            if self.core.log is not None:
                self.core.log.time_commit(plan.step_id, time.monotonic() - began)
        if self._shown is not None:
            self._shown.finish()
        self._note_progress()
        return updates

    def _compute(
        self,
        step_id: int,
        result: Callable[[], StepResult],
        found: asyncio.Future[StepResult],
    ) -> None:
        """Compute a step, on the device thread, and let the loop settle its future."""
        computed: StepResult | BaseException
        began = time.monotonic()
        try:
            computed = result()
            self._computed[step_id] = began, time.monotonic()
        except CONTAINED as error:
            computed = _as_exception(error)
        except BaseException as error:  # ends the loop
            computed = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            found.get_loop().call_soon_threadsafe(_settle, found, computed)

    def _log_time(self, plan: StepPlan, plan_seconds: float) -> None:
        computed = self._computed.pop(plan.step_id)
        if self.core.log is not None:
            self.core.log.time(plan.step_id, plan_seconds, *computed)

    def _log_failure(self, plan: StepPlan, error: Exception) -> None:
        """Log a step that raised. While its requests are repeated in groups, the groups that raise
        have no traceback: it is the same one."""
        is_repeated = self.core.is_isolating and len(plan.grants) > 1
        log.error(
            "step_failed",
            step_id=plan.step_id,
            num_requests=len(plan.grants),
            engine_ids=[grant.engine_id for grant in plan.grants[:MAX_NAMED]],
            **self._suspects,
            exc_info=None if is_repeated else error,
        )

    def take_media(self) -> None:
        """Give the executor the images of a new request, before a plan starts it.

        Raises RequestFailedError if it cannot take them.
        """
        assert self.core.media is not None
        try:
            TAKE_MEDIA.of(self._executor)(self.core.media.take_new())
        except CONTAINED as error:
            log.error("executor_failed", method="take_media", **self._suspects, exc_info=error)
            raise RequestFailedError("the engine could not take the images") from error

    # Progress

    @property
    def stalled_for(self) -> float:
        """Seconds since the last completed step while there was work; 0 when idle."""
        return time.monotonic() - self._last_progress if self.core.has_work else 0.0

    @property
    def expected_seconds(self) -> float:
        """Maximum seconds that the current step is expected to take."""
        return self._times.expected(self._num_tokens)

    def rest(self) -> None:
        """Note that there was nothing to compute until now: this is no stall."""
        self._last_progress = time.monotonic()

    def show_work(self, is_busy: bool) -> None:
        """Show on the board whether there is work."""
        self._board.work(is_busy, self.expected_seconds)

    def _show_launch(self, plan: StepPlan) -> None:
        self._board.launch(
            (number, grant.start + grant.num_tokens)
            for grant in plan.grants
            if (number := self.numbers.get(grant.engine_id)) is not None
        )
        if self._shown is not None:
            self._shown.launch(plan.step_id)

    def _note_progress(self) -> None:
        self._board.finish()
        now = time.monotonic()
        self._times.note(self._num_tokens, now - self._last_progress)
        self._last_progress = now


def _settle(found: asyncio.Future[StepResult], computed: StepResult | BaseException) -> None:
    if found.done():
        return  # the loop was cancelled
    if isinstance(computed, BaseException):
        found.set_exception(computed)
    else:
        found.set_result(computed)


def _as_exception(error: BaseException) -> Exception:
    """An exception that a future accepts, and that neither ends nor cancels its reader's loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    found = RuntimeError(f"{type(error).__name__}: {error}")
    found.__cause__ = error
    return found
