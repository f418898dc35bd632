"""Workers that crash, hang, differ or fail to start: the engine's process survives and says so."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.core.processes.test_child import wait_until_gone
from tokenmill.backends.execution.workers import executor as executor_module
from tokenmill.backends.execution.workers.executor import MultiProcess
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError, DeviceError, EngineStoppedError
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.processes.channels.frames import receive
from tokenmill.core.processes.child import spawn
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell.local_engine import EngineParts, local_engine
from tokenmill.testing.conformance.executor.worker import (
    SEED,
    VOCAB_SIZE,
    decode_plan,
    make_spec,
    prompt_plan,
)
from tokenmill.testing.simulated.executor import expected_tokens
from tokenmill.testing.toy_tokenizer import ToyTokenizer

from . import linked_targets, targets
from .starting import start

PATIENCE = 30.0
check = pytest.mark.check
"""Each starts ranks of its own. The first tier has one test of every way in which they are lost."""


def target_of(function: Callable[..., None]) -> str:
    return f"{function.__module__}:{function.__name__}"


@pytest.fixture
def executor() -> Iterator[MultiProcess]:
    found = start(target_of(targets.faulty))
    yield found
    found.close()
    wait_until_gone(list(found.pids))


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (targets.CRASH, "worker 0 killed by SIGSEGV"),
        (targets.HANG, "worker 0 hangs: no sign of life for 1.5 seconds"),
    ],
)
def test_a_worker_that_crashes_or_hangs_ends_all_open_steps(
    executor: MultiProcess, token: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert executor.launch(prompt_plan("a", (1, 2), 1)).result().step_id == 1
    plans = [prompt_plan("b", (token,), 2, block=8), decode_plan("a", 2, 3)]
    with caplog.at_level(logging.ERROR, "tokenmill"):
        for pending in [executor.launch(plan) for plan in plans]:
            with pytest.raises(DeviceError, match=reason) as found:
                pending.result()
            assert not found.value.from_outside
    assert executor.health() == reason
    [record] = [found for found in caplog.records if found.getMessage() == "worker_lost"]
    assert record.__dict__["pid"] == executor.pids[0]
    with pytest.raises(DeviceError, match=reason):
        executor.launch(decode_plan("a", 3, 4)).result()


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.soak)]
)
def test_a_worker_that_is_lost_while_idle_is_reported_as_well(
    executor: MultiProcess, number: signal.Signals
) -> None:
    assert executor.health() is None
    os.kill(executor.pids[0], number)
    end = time.monotonic() + PATIENCE
    while executor.health() is None:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_requests_of_a_worker_that_someone_killed_are_excused(executor: MultiProcess) -> None:
    pending = executor.launch(prompt_plan("a", (targets.HANG,), 1))
    os.kill(executor.pids[0], signal.SIGKILL)
    with pytest.raises(DeviceError, match="worker 0 killed by SIGKILL") as found:
        pending.result()
    assert found.value.from_outside


def test_a_lost_device_is_reported_by_a_living_worker(executor: MultiProcess) -> None:
    with pytest.raises(DeviceError, match="the device failed"):
        executor.launch(prompt_plan("a", (targets.LOSE,), 1)).result()


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        (
            targets.different,
            ConfigError,
            "worker 0 differs from the engine: version 0 instead of 1; "
            r"additional plugins: spy \(own 1\); --seed 7 instead of 0",
        ),
        (targets.refusing, ConfigError, "^this model cannot work$"),
        (targets.dying, DeviceError, "worker 0 ended with status 3 while it loaded the model"),
    ],
)
def test_a_worker_that_differs_or_cannot_start_is_a_clear_error(
    target: Callable[..., None], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        start(target_of(target))


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        pytest.param(
            targets.ALONE,
            r"worker 0 waits for worker 1, whose step failed \(RuntimeError: only here\)",
            marks=check,
        ),
        (targets.DISAGREE, "worker 0 and another worker computed different tokens"),
    ],
)
def test_ranks_that_do_not_do_the_same_are_ended(token: int, reason: str) -> None:
    executor = start(target_of(targets.unequal), size=2)
    assert executor.info.num_blocks == 255, "the minimum of all ranks"
    assert executor.launch(prompt_plan("a", (1, 2), 1)).result().step_id == 1
    with pytest.raises(DeviceError, match=reason):
        executor.launch(prompt_plan("b", (token,), 2, block=8)).result()
    executor.close()
    wait_until_gone(list(executor.pids))


def test_a_rank_that_waits_for_a_cpu_may_answer_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """After another rank has failed, the others have a second of their own."""
    ours, theirs = socket.socketpair()

    class Waiting:
        num_checks = 0

        def __init__(self, pid: int | None) -> None: ...

        def check(self, now: float, mark: object) -> float:
            self.num_checks += 1
            if self.num_checks == 10:
                theirs.send(b"answer")
            return 0.0

    monkeypatch.setattr(executor_module, "Stall", Waiting)
    monkeypatch.setattr(executor_module, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(executor_module, "LAG_SECONDS", 0.05)
    link: Any = SimpleNamespace(local_pid=None, rank=0)
    ranks: Any = MultiProcess([link] * 2, None, SimpleNamespace(num_stages=1), None)  # type: ignore[arg-type]
    with ours, theirs:
        assert ranks._wait({ours: link}, "worker 1, whose step failed") == [ours]


def listening(pid: int) -> list[str]:
    """The addresses on which a process takes connections."""
    connections = psutil.Process(pid).net_connections("inet")
    return [one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN]


@check
def test_ranks_find_each_other_in_private_and_a_lost_connection_ends_them() -> None:
    """They could not join again, so every later step would fail, too."""
    before = listening(os.getpid())
    executor = start(target_of(linked_targets.severed), size=2)
    assert listening(os.getpid()) == before
    # Gloo's own: it keeps the port over which ranks have connected, until the process ends.
    assert {address for pid in executor.pids for address in listening(pid)} == {"127.0.0.1"}
    assert executor.launch(prompt_plan("a", (1, 2), 1)).result().step_id == 1
    with pytest.raises(DeviceError):  # gloo may end the process
        executor.launch(prompt_plan("b", (linked_targets.SEVER,), 2, block=8)).result()
    executor.close()


@check
def test_ranks_with_other_types_of_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"worker 0 has dtype .*, and worker 1 has bfloat16: set"):
        start(target_of(targets.mixed), size=2)


def test_plans_that_do_not_fit_beside_open_ones_are_computed_in_order() -> None:
    executor = start(make_spec().load_rank)
    prompt = tuple(range(1, 900)) * 250
    plans = [prompt_plan("a", prompt, 1), decode_plan("a", len(prompt), 2)]
    plans += [prompt_plan("b", prompt, 3, block=2**14), decode_plan("b", len(prompt), 4)]
    found = [pending.result() for pending in [executor.launch(plan) for plan in plans]]
    executor.close()
    tokens = [result.token_ids[0][0] for result in found]
    assert tokens == expected_tokens(prompt, 2, SEED, VOCAB_SIZE) * 2


@check
def test_a_program_with_more_than_a_thousand_open_files_has_workers() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1024):
            stack.enter_context(open(os.devnull))
        executor = start(make_spec().load_rank)
        stack.callback(executor.close)
        assert executor.launch(prompt_plan("a", (1, 2), 1)).result().step_id == 1


def test_a_worker_ends_with_a_killed_engine() -> None:
    with spawn(f"{start.__module__}:engine", [socket.SOCK_STREAM]) as engine:
        worker = int(receive(engine.sockets[0], PATIENCE))
        os.kill(engine.pid, signal.SIGKILL)
        wait_until_gone([worker])


def test_requests_of_a_lost_worker_get_an_error_and_the_engine_says_so(
    executor: MultiProcess,
) -> None:
    def build(config: EngineConfig, progress: Any) -> EngineParts:
        plugins = PluginHost.load(config)
        return EngineParts(executor=executor, tokenizer=ToyTokenizer(), plugins=plugins)

    async def serve() -> None:
        async with local_engine(EngineConfig(disable_log_stats=True), build) as engine:
            params = SamplingParams(max_tokens=2000, ignore_eos=True)
            streams = [await engine.submit([1 + i, 2, 3], params) for i in range(4)]
            await anext(streams[0])
            os.kill(executor.pids[0], signal.SIGKILL)
            ends = await asyncio.gather(*map(read, streams), return_exceptions=True)
            assert [type(end) for end in ends] == [EngineStoppedError] * 4
            assert "worker 0 killed by SIGKILL; start a new engine" in str(ends[0])
            assert not engine.load().is_alive
            with pytest.raises(EngineStoppedError, match="worker 0 killed by SIGKILL"):
                await engine.submit([1, 2], params)

    async def read(stream: Any) -> None:
        async for _ in stream:
            pass

    asyncio.run(asyncio.wait_for(serve(), PATIENCE))
