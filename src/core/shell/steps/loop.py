"""The engine loop: takes turns while there is work, and delivers the tokens of each step."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ...engine.committing import RequestUpdate
from ...engine.engine_core import EngineCore
from ...engine.request import Request
from ...errors import (
    CONTAINED,
    DeviceError,
    EngineStoppedError,
    OverloadedError,
    RequestFailedError,
)
from ...interfaces import Executor
from ...log import get_logger
from ...outputs import FinishReason
from ...processes.watching.board import Board
from ..new_requests import engine_ids
from ..output_stream import Completion, OutputStream
from .device import DeviceSteps
from .overlap import OneAhead, OneByOne

log = get_logger("engine")

MAX_LIVE_PROMPT_LOGPROBS = 1 << 20
"""Log-probabilities of prompt tokens that all live requests may hold: 100 MB."""
RETRY_SECONDS = 0.05
"""Time after which the loop calls `plan` again if there is work that could not be planned."""


def stopped_by(reason: str) -> EngineStoppedError:
    """The error of requests that an engine can no longer compute."""
    return EngineStoppedError("the engine stopped", reason=reason)


class StepLoop:
    """Drives one EngineCore, and delivers the results of its steps to the streams."""

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
        self._steps = DeviceSteps(core, executor, device, board, load_seconds, self._suspects)
        turns: type[OneAhead | OneByOne] = OneAhead if core.max_open_plans > 1 else OneByOne
        self._turns = turns(self._steps, self._may_plan, self._deliver)
        self._streams: dict[str, dict[int, OutputStream]] = {}
        """The streams of live requests, by request id and index of the prompt."""
        self._members: dict[str, tuple[OutputStream, Completion]] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_stopping = False

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
            self._steps.rest()
        self._board.add(stream.number)
        try:
            self.core.add(requests, time.monotonic())
        finally:
            self._board.add(0)
        self._steps.show_work(self.core.has_work)
        self._streams.setdefault(stream.request_id, {})[stream.prompt_index] = stream
        for request, completion in zip(requests, stream.completions, strict=True):
            self._members[request.engine_id] = stream, completion
            self._steps.numbers[request.engine_id] = stream.number
        self._idle.clear()
        self._wake.set()
        if requests[0].media:
            self._take_media(stream)

    def _take_media(self, stream: OutputStream) -> None:
        try:
            self._steps.take_media()
        except RequestFailedError:
            self.abort_stream(stream)
            raise

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
        return self._steps.stalled_for

    @property
    def expected_step_seconds(self) -> float:
        """Maximum seconds that the current step is expected to take."""
        return self._steps.expected_seconds

    # The loop

    async def run(self) -> None:
        """Serve until `stop`. An exception of the engine itself ends all requests and the loop."""
        try:
            while not self._is_stopping or self._turns.num_open:
                await self._turn()
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:  # even one of a plugin's own: otherwise requests would hang
            log.exception("engine_died")
            self._die(f"the engine failed: {type(error).__name__}")

    async def _turn(self) -> None:
        try:
            if not await self._turns.take():
                await self._sleep()
        except DeviceError as error:
            if error.from_outside:
                self._board.excuse()
            self._die(str(error))

    def _may_plan(self) -> bool:
        return not self._is_stopping and self._death is None

    async def _sleep(self) -> None:
        now = time.monotonic()
        if not self.core.has_work:
            self._rest()
        self._wake.clear()
        if self._is_stopping:
            return
        self._steps.show_work(self.core.has_work and self.core.wake_at is None)
        timeout = None
        if self.core.has_work and self._death is None:
            timeout = (
                RETRY_SECONDS if self.core.wake_at is None else max(0.0, self.core.wake_at - now)
            )
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout)
        if self.core.wake_at is not None:  # the policy has waited, which is no step
            self._steps.rest()

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
        self._steps.numbers.clear()
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
            self._forget_choice(update.engine_id)

    def _fail(self, stream: OutputStream, message: str) -> None:
        """End a stream with an error, and abort all of its requests."""
        stream.fail(RequestFailedError(message))
        for request in stream.requests:
            self._forget_choice(request.engine_id)
            self.core.abort(request.engine_id, time.monotonic())

    def _forget_choice(self, engine_id: str) -> None:
        self._members.pop(engine_id, None)
        self._steps.numbers.pop(engine_id, None)
