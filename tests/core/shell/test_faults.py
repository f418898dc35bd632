"""An engine whose parts fail or hang still answers every request, and always closes."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.engine.engine_core import EngineCore
from tokenmill.core.engine.request import Request
from tokenmill.core.errors import DeviceError, EngineStoppedError, RequestFailedError
from tokenmill.core.interfaces import Computation
from tokenmill.core.outputs import FinishReason
from tokenmill.core.plan import StepPlan, StepResult
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell import engine_shell, local_engine
from tokenmill.testing.simulated.executor import SimulatedExecutor

from .test_engine_shell import PROMPT, collect, in_event_loop, make_engine

LONG = SamplingParams(max_tokens=200)


class Hanging(SimulatedExecutor):
    """A step ends, or raises `failure`, when `gate` is set."""

    def __init__(self, gate: threading.Event, failure: Exception | None = None) -> None:
        super().__init__(num_blocks=64, block_size=4)
        self.gate = gate
        self.failure = failure
        self.is_closed = threading.Event()

    def run(self, plan: StepPlan) -> StepResult:
        self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return super().run(plan)

    def close(self) -> None:
        self.is_closed.set()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Opens at the end, because a program waits for its threads."""
    found = threading.Event()
    yield found
    found.set()


@pytest.fixture
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (engine_shell, local_engine):
        monkeypatch.setattr(module, "CLOSING_SECONDS", 0.1)


@pytest.mark.usefixtures("little_patience")
@in_event_loop
async def test_drain_and_close_return_while_a_step_hangs(gate: threading.Event) -> None:
    hanging = Hanging(gate)
    engine = make_engine(hanging)
    await engine.start()
    stream = await engine.submit(PROMPT, LONG)
    await engine.drain(0.05)
    outputs = [o async for o in stream]
    assert outputs[-1].outputs[0].finish_reason is FinishReason.ABORT
    await engine.close()
    assert not hanging.is_closed.is_set()
    gate.set()
    assert await asyncio.to_thread(hanging.is_closed.wait, 30), "the executor is closed later"


@in_event_loop
async def test_a_dying_engine_ends_every_stream_even_if_none_can_be_aborted(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise KeyError("planted")

    async with make_engine(Hanging(gate, DeviceError("lost"))) as engine:
        streams = [await engine.submit(PROMPT, LONG) for _ in range(3)]
        monkeypatch.setattr(EngineCore, "abort", broken)
        gate.set()
        for stream in streams:
            with pytest.raises(EngineStoppedError):
                async for _ in stream:
                    pass
        assert not engine.load().is_alive


class Lost(Hanging):
    """Says that its device is lost, before the open step raises."""

    reason: str | None = None

    def health(self) -> str | None:
        return self.reason


@in_event_loop
async def test_a_lost_executor_ends_the_engine_after_its_requests_have_their_errors(
    gate: threading.Event,
) -> None:
    executor = Lost(gate, DeviceError("lost"))
    async with make_engine(executor) as engine:
        stream = await engine.submit(PROMPT, LONG)
        executor.reason = "lost"
        assert engine.load().is_alive, "else the request would be aborted"
        gate.set()
        with pytest.raises(EngineStoppedError, match="stopped: lost; start a new engine"):
            async for _ in stream:
                pass
        assert not engine.load().is_alive


class Refusing(SimulatedExecutor):
    """Cannot launch a step that starts a prompt of two tokens."""

    def launch(self, plan: StepPlan) -> Computation:
        if any(len(start.token_ids) == 2 for start in plan.starts):
            raise self.error
        return super().launch(plan)

    def __init__(self, error: BaseException) -> None:
        super().__init__(num_blocks=64, block_size=4)
        self.error = error


@pytest.mark.parametrize("error", [ValueError("planted"), SystemExit("planted")])
@in_event_loop
async def test_a_launch_that_raises_ends_its_request_and_no_other(error: BaseException) -> None:
    async with make_engine(Refusing(error)) as engine:
        other = await engine.submit(PROMPT, LONG)
        with pytest.raises(RequestFailedError, match="step"):
            async for _ in engine.generate([1, 2], LONG):
                pass
        outputs = [output async for output in other]
        assert outputs[-1].outputs[0].finish_reason is FinishReason.LENGTH
        assert engine.load().is_alive and engine.load().kv_cache_usage == 0


class Odd(SimulatedExecutor):
    """Answers the steps of a prompt of two tokens with something else than their result."""

    def __init__(self, amend: Callable[[StepResult], object]) -> None:
        super().__init__(num_blocks=64, block_size=4)
        self._amend = amend

    def run(self, plan: StepPlan) -> Any:
        result = super().run(plan)
        odd = any(len(start.token_ids) == 2 for start in plan.starts)
        return self._amend(result) if odd else result


@pytest.mark.parametrize(
    "amend",
    [
        lambda result: None,
        lambda result: replace(result, step_id=7000),
        lambda result: replace(result, token_ids=()),
        lambda result: replace(result, token_ids=None),
        lambda result: replace(result, token_ids=(*result.token_ids[:-1], ())),
        lambda result: replace(result, logprobs=()),
        lambda result: sys.exit("planted"),
    ],
)
@in_event_loop
async def test_an_odd_answer_of_an_executor_is_a_failed_step_and_no_dead_engine(
    amend: Callable[[StepResult], object],
) -> None:
    async with make_engine(Odd(amend)) as engine:
        other = await engine.submit(PROMPT, LONG)
        with pytest.raises(RequestFailedError, match=r"step|returned 0 tokens"):
            async for _ in engine.generate([1, 2], LONG):
                pass
        outputs = [output async for output in other]
        assert outputs[-1].outputs[0].finish_reason is FinishReason.LENGTH
        assert engine.load().is_alive


@in_event_loop
async def test_an_executor_that_launches_nothing_is_a_failed_step() -> None:
    class Nothing(SimulatedExecutor):
        def launch(self, plan: StepPlan) -> Any:
            return None

    async with make_engine(Nothing(num_blocks=64, block_size=4)) as engine:
        with pytest.raises(RequestFailedError, match="step"):
            async for _ in engine.generate([1, 2], LONG):
                pass
        assert engine.load().is_alive


@in_event_loop
async def test_an_executor_that_is_lost_while_idle_ends_the_engine(gate: threading.Event) -> None:
    executor = Lost(gate)
    async with make_engine(executor) as engine:
        executor.reason = "lost"
        assert not engine.load().is_alive
        with pytest.raises(EngineStoppedError, match="the engine stopped: lost"):
            await engine.submit(PROMPT, LONG)


@in_event_loop
async def test_a_finished_request_is_not_kept_until_its_deadline() -> None:
    async with make_engine(request_timeout=3600) as engine:
        async for _ in await engine.submit(PROMPT, SamplingParams(max_tokens=2), request_id="kept"):
            pass
        await engine.drain()
        gc.collect()
        requests = [found for found in gc.get_objects() if type(found) is Request]
        assert "kept" not in {request.request_id for request in requests}


class Allergic(SimulatedExecutor):
    """A step raises if it computes the prompt of a request that begins with 666."""

    def __init__(self) -> None:
        super().__init__(num_blocks=256, block_size=4)

    def run(self, plan: StepPlan) -> StepResult:
        if any(start.token_ids[0] == 666 for start in plan.starts):
            self.crash(plan)
            raise RuntimeError("planted")
        return super().run(plan)


@in_event_loop
async def test_a_step_that_raises_is_logged_once_with_its_traceback_and_once_with_its_culprit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with make_engine(Allergic()) as engine:
        prompts = [*([i, 1] for i in range(8)), [666, 1]]
        streams = [await engine.submit(prompt, SamplingParams(max_tokens=9)) for prompt in prompts]
        for stream in streams[:-1]:
            assert [output async for output in stream][-1].finished
        with pytest.raises(RequestFailedError):
            async for _ in streams[-1]:
                pass
    failed = [vars(record) for record in caplog.records if record.getMessage() == "step_failed"]
    assert len(failed) > 2
    shown = [
        record["num_requests"] for record in failed if "planted" in record.get("exception", "")
    ]
    assert shown == [failed[0]["num_requests"], 1]
    assert failed[-1]["engine_ids"] == [streams[-1].request_id]


class WithoutText(Exception):
    def __str__(self) -> str:
        raise AttributeError("it was not set")


class Invented(BaseException):
    """No Exception."""


class Raising:
    """Plans no step, and cannot be told of the end of a request."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    @hookimpl
    def schedule(self) -> None:
        raise self._error

    @hookimpl
    def on_finished(self) -> None:
        raise self._error


@in_event_loop
async def test_an_exception_whose_text_fails_is_a_failure_like_any_other() -> None:
    async with make_engine(plugins=[Raising(WithoutText())]) as engine:
        outputs = await collect(engine, max_tokens=4)
        assert outputs[-1].outputs[0].finish_reason is FinishReason.LENGTH
        await engine.drain(0.05)


@in_event_loop
async def test_an_exception_that_a_plugin_invents_leaves_nobody_waiting() -> None:
    async with make_engine(plugins=[Raising(Invented())]) as engine:
        with pytest.raises(EngineStoppedError, match="the engine failed: Invented"):
            await collect(engine, max_tokens=4)
        await engine.drain(30)
