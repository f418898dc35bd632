"""The engine loop: plan a step, run it on the device thread, commit it, deliver its tokens.

Tokens are delivered while the next step runs.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ..engine.committing import RequestUpdate
from ..engine.engine_core import EngineCore
from ..engine.request import Request
from ..errors import (
    CONTAINED,
    DeviceError,
    EngineStoppedError,
    OverloadedError,
    RequestFailedError,
)
from ..interfaces import Executor
from ..log import get_logger
from ..outputs import FinishReason
from ..plan import StepPlan, StepResult, check_result
from ..processes.board import Board
from .admission import engine_ids
from .output_stream import Completion, OutputStream
from .step_times import StepTimes

log = get_logger("engine")

MAX_LIVE_PROMPT_LOGPROBS = 1 << 20
"""Log-probabilities of prompt tokens that all live requests may hold: 100 MB."""
RETRY_SECONDS = 0.05
"""Time after which the loop calls `plan` again if there is work that could not be planned."""
MAX_NAMED = 8
"""Maximum number of requests that the log line of a failed step names."""


def stopped_by(reason: str) -> EngineStoppedError:
    """The error of requests that an engine can no longer compute."""
    return EngineStoppedError("the engine stopped", reason=reason)


def _compute(result: Callable[[], StepResult]) -> StepResult:
    try:
        return result()
    except Exception:
        raise
    except CONTAINED as error:
        raise _as_exception(error) from error


def _as_exception(error: BaseException) -> Exception:
    """An exception that neither ends nor cancels the loop that awaits it."""
    if isinstance(error, Exception):
        return error
    found = RuntimeError(f"{type(error).__name__}: {error}")
    found.__cause__ = error
    return found


class StepLoop:
    """Drives one EngineCore and its executor, and delivers the results to the streams."""

    def __init__(
        self,
        core: EngineCore,
        executor: Executor,
        device: ThreadPoolExecutor,
        board: Board,
        load_seconds: float,
        plugins: Sequence[str] = (),
    ) -> None:
        """`board`: see EngineShell.board. `load_seconds`: how long the model took to load.
        `plugins`: see `PluginHost.foreign_computing`."""
        self.core = core
        self._death: str | None = None
        self._board = board
        self._suspects = {"plugins": list(plugins)} if plugins else {}
        """Fields of log events about failed computations."""
        self._executor = executor
        self._device = device
        self._open: deque[tuple[StepPlan, asyncio.Future[StepResult]]] = deque()
        self._streams: dict[str, dict[int, OutputStream]] = {}
        """The streams of live requests, by request id and index of the prompt."""
        self._members: dict[str, tuple[OutputStream, Completion]] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_stopping = False
        self._last_progress = time.monotonic()
        self._step_times = StepTimes(load_seconds)
        self._num_tokens = 0
        """Tokens of the step that the device computes."""

    # For the shell

    def free_id(self, wanted: str, prompt_index: int, n: int) -> str:
        """Return `wanted`, with a suffix if a live request has that id.

        Further prompts of a call share the id of the first.
        """
        found = wanted
        while self._is_taken(found, prompt_index, n):
            found = f"{wanted}-{uuid.uuid4().hex[:8]}"
        return found

    def _is_taken(self, request_id: str, prompt_index: int, n: int) -> bool:
        if prompt_index == 0 and request_id in self._streams:
            return True
        return any(map(self.core.has, engine_ids(request_id, prompt_index, n)))

    def add(self, requests: Sequence[Request], stream: OutputStream) -> None:
        """Queue a request. Raises what EngineCore.add raises; then the loop keeps nothing of it."""
        if stream.num_prompt_logprobs:
            self._check_prompt_logprobs(stream)
        if not self.core.has_work:
            self._last_progress = time.monotonic()
        self._board.add(stream.number)
        try:
            self.core.add(requests, time.monotonic())
        finally:
            self._board.add(0)
        self._show_work(self.core.has_work)
        self._streams.setdefault(stream.request_id, {})[stream.prompt_index] = stream
        for request, completion in zip(requests, stream.completions, strict=True):
            self._members[request.engine_id] = stream, completion
        self._idle.clear()
        self._wake.set()

    def _check_prompt_logprobs(self, stream: OutputStream) -> None:
        streams = (*self._live_streams(), stream)
        total = sum(one.num_prompt_logprobs for one in streams)
        if total > MAX_LIVE_PROMPT_LOGPROBS and len(streams) > 1:
            raise OverloadedError(
                f"live requests and this one ask for {total} log-probabilities of prompt tokens, "
                f"and the limit is {MAX_LIVE_PROMPT_LOGPROBS}; try again later"
            )

    def abort(self, request_id: str) -> None:
        """End all prompts of a call early. Unknown ids are ignored."""
        for stream in list(self._streams.get(request_id, {}).values()):
            self.abort_stream(stream)

    def abort_stream(self, stream: OutputStream) -> None:
        """End one prompt early. Its stream ends at once, its blocks are freed after the step."""
        for request in stream.requests:
            self.core.abort(request.engine_id, time.monotonic())
        self._deliver(self.core.take_updates())

    def abort_all(self) -> None:
        """End every request. One that cannot be aborted ends with an error."""
        for stream in self._live_streams():
            try:
                self.abort_stream(stream)
            except BaseException:
                log.exception("abort_failed", request_id=stream.request_id)
                stream.fail(RequestFailedError("the engine could not end this request"))

    def _live_streams(self) -> list[OutputStream]:
        return [stream for streams in self._streams.values() for stream in streams.values()]

    async def wait_idle(self) -> None:
        """Wait until no request is left."""
        await self._idle.wait()

    def stop(self) -> None:
        """Make `run` return after the open steps."""
        self._is_stopping = True
        self._wake.set()

    @property
    def death(self) -> str | None:
        """The reason why the engine can no longer compute; None while it can.

        If the executor is lost while there are requests, this stays None until the loop has failed
        them. Otherwise a caller could close the engine first, and they would end as aborted.
        """
        return self._death or (None if self.core.has_work else self._health())

    def _health(self) -> str | None:
        try:
            return self._executor.health()
        except CONTAINED as error:
            log.error("executor_failed", method="health", **self._suspects, exc_info=error)
            return f"the executor's health check failed: {type(error).__name__}"

    @property
    def stalled_for(self) -> float:
        """Seconds since the last completed step while there was work; 0 when idle."""
        return time.monotonic() - self._last_progress if self.core.has_work else 0.0

    @property
    def expected_step_seconds(self) -> float:
        """Maximum seconds that the current step is expected to take."""
        return self._step_times.expected(self._num_tokens)

    def _show_work(self, is_busy: bool) -> None:
        self._board.work(is_busy, self.expected_step_seconds)

    def _show_launch(self, plan: StepPlan) -> None:
        self._board.launch(
            (member[0].number, grant.start + grant.num_tokens)
            for grant in plan.grants
            if (member := self._members.get(grant.engine_id))
        )

    def _note_progress(self) -> None:
        self._board.finish()
        now = time.monotonic()
        self._step_times.note(self._num_tokens, now - self._last_progress)
        self._last_progress = now

    # The loop

    async def run(self) -> None:
        """Serve until `stop`. An exception of the engine itself ends all requests and the loop."""
        try:
            while not self._is_stopping or self._open:
                await self._turn()
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:  # also those that a plugin invents: nobody would be answered
            log.exception("engine_died")
            self._die(f"the engine failed: {type(error).__name__}")

    async def _turn(self) -> None:
        self._launch()
        self._deliver(self.core.take_updates())
        if self._open:
            await self._finish_oldest()
        else:
            await self._sleep()

    def _launch(self) -> None:
        """Open as many plans as allowed. The device runs them in order."""
        while self._may_launch() and (plan := self.core.plan(time.monotonic())) is not None:
            self._open.append((plan, self._start(plan)))

    def _start(self, plan: StepPlan) -> asyncio.Future[StepResult]:
        """Launch a step. If the launch raises, the step counts as one that raised."""
        loop = asyncio.get_running_loop()
        self._show_launch(plan)
        try:
            result = self._executor.launch(plan).result
        except CONTAINED as error:
            failed: asyncio.Future[StepResult] = loop.create_future()
            failed.set_exception(_as_exception(error))
            return failed
        return loop.run_in_executor(self._device, _compute, result)

    def _may_launch(self) -> bool:
        """Whether another plan may be opened: only if every open plan is a plain decode step.

        A new request waits for all open plans. With a prompt among them it would wait for two long
        steps. If the model has stages, it waits for the first stage only.
        """
        if self._is_stopping or self._death is not None:
            return False
        if self._executor.info.num_stages > 1:
            return True
        return all(grant.num_tokens == 1 for plan, _ in self._open for grant in plan.grants)

    async def _finish_oldest(self) -> None:
        """Commit the oldest open step, then plan the next one, and only then deliver tokens.

        In this order the device does not wait for the delivery.
        """
        plan, future = self._open.popleft()
        self._num_tokens = plan.num_tokens
        self._show_work(True)
        try:
            result = await future
            check_result(result, plan)
        except DeviceError as error:
            self.core.fail(plan, "the device failed", time.monotonic())
            self._die(str(error))
            return
        except Exception as error:
            self._log_failure(plan, error)
            updates = self.core.fail(
                plan, "the step that computed this request failed", time.monotonic()
            )
        else:
            updates = self.core.commit(plan, result, time.monotonic())
        self._note_progress()
        self._launch()
        self._deliver(updates)

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

    async def _sleep(self) -> None:
        now = time.monotonic()
        if not self.core.has_work:
            self._rest()
        self._wake.clear()
        if self._is_stopping:
            return
        self._show_work(self.core.has_work and self.core.wake_at is None)
        timeout = None
        if self.core.has_work and self._death is None:
            timeout = (
                RETRY_SECONDS if self.core.wake_at is None else max(0.0, self.core.wake_at - now)
            )
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout)
        if self.core.wake_at is not None:  # the policy has waited, which is no step
            self._last_progress = time.monotonic()

    def _rest(self) -> None:
        if self.core.pool.num_held:
            log.error("kv_blocks_leaked", num_blocks=self.core.pool.num_held)
        self._idle.set()

    def _die(self, reason: str) -> None:
        """Fail every request. The engine computes nothing from now on."""
        if self._death is not None:
            return  # another open step has failed before
        log.error("engine_stopped", reason=reason, **self._suspects)
        self._death = reason
        for stream in self._live_streams():
            stream.fail(stopped_by(reason))
        self.abort_all()
        self._streams.clear()
        self._members.clear()
        self._idle.set()

    # Outputs

    def _deliver(self, updates: Sequence[RequestUpdate]) -> None:
        """Apply updates to their streams, and wake each reader once."""
        touched: dict[OutputStream, None] = {}
        for update in updates:
            member = self._members.get(update.engine_id)
            if member is not None:
                self._apply(update, *member)
                touched[member[0]] = None
        for stream in touched:
            stream.wake()
            if stream.is_finished:
                self._forget(stream)

    def _forget(self, stream: OutputStream) -> None:
        prompts = self._streams.get(stream.request_id, {})
        if prompts.get(stream.prompt_index) is stream:
            del prompts[stream.prompt_index]
            if not prompts:
                del self._streams[stream.request_id]

    def _apply(self, update: RequestUpdate, stream: OutputStream, completion: Completion) -> None:
        if update.error is not None:
            log.error(
                "request_failed",
                request_id=stream.request_id,
                reason=update.error,
                **self._suspects,
            )
            self._fail(stream, update.error)
            return
        if update.prompt_logprobs:
            stream.add_prompt_logprobs(update.prompt_logprobs)
        if update.pooled:
            stream.add_pooled(update.pooled)
        try:
            found = completion.apply(update)
        except Exception:
            log.exception("detokenize_failed", request_id=stream.request_id)
            self._fail(stream, "the text of this request could not be decoded")
            return
        if found is not None:
            self.core.finish(
                update.engine_id,
                FinishReason.STOP,
                time.monotonic(),
                num_tokens=found.num_tokens,
                stop_reason=found.stop_string,
            )
        if completion.finish_reason is not None:
            del self._members[update.engine_id]

    def _fail(self, stream: OutputStream, message: str) -> None:
        """End a stream with an error, and abort all of its requests."""
        stream.fail(RequestFailedError(message))
        for request in stream.requests:
            self._members.pop(request.engine_id, None)
            self.core.abort(request.engine_id, time.monotonic())
