"""An engine process that ends while it starts: what is reported."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import weakref
from typing import Any

import pytest

from tests.core.plugin_packages import Packages
from tokenmill.core.errors import EngineStoppedError, PluginError
from tokenmill.core.processes.child import Child, spawn
from tokenmill.core.processes.watching import restarts
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.supervised import link

from .serving import PATIENCE
from .toy_process import START_FAULT, toy_process, until


@pytest.mark.parametrize(("fault", "how"), [("K", "killed by SIGKILL"), ("C", "killed by SIGSEGV")])
def test_the_error_names_the_signal_and_the_stage(
    fault: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(START_FAULT, fault)
    with pytest.raises(EngineStoppedError) as error:
        asyncio.run(toy_process().start())
    assert str(error.value) == (f"the engine's process did not start: {how} while loading the toy")


def test_starts_without_room_in_a_cluster_are_repeated_beyond_the_limit_of_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restarts, "LONGEST_DELAY", 0.1)

    async def lose_and_start_again() -> None:
        async with toy_process(max_restarts=1) as engine:
            [supervisor] = engine.running.replicas.supervisors
            monkeypatch.setenv(START_FAULT, "U")
            assert supervisor.link is not None
            os.kill(supervisor.link.pid, signal.SIGKILL)
            await until(lambda: supervisor.num_restarts > 2)
            assert supervisor.failure is None
            monkeypatch.delenv(START_FAULT)
            await until(lambda: engine.load().is_alive)

    asyncio.run(lose_and_start_again())


def test_a_process_that_is_killed_before_its_first_stage_was_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spawn_and_kill(*arguments: Any, output: int) -> Child:
        child = spawn(*arguments, output=output)
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(PATIENCE)
        return child

    async def lose_and_start_again() -> None:
        async with toy_process() as engine:
            [supervisor] = engine.running.replicas.supervisors
            monkeypatch.setattr(link, "spawn", spawn_and_kill)
            assert supervisor.link is not None
            os.kill(supervisor.link.pid, signal.SIGKILL)
            await until(lambda: supervisor.num_restarts > 2)
            assert engine.load().is_restarting and not engine.load().is_alive
            monkeypatch.undo()
            await until(lambda: engine.load().is_alive)
            async for output in engine.generate("abc", SamplingParams(max_tokens=3)):
                assert output.outputs

    asyncio.run(lose_and_start_again())
    monkeypatch.setattr(link, "spawn", spawn_and_kill)
    with pytest.raises(EngineStoppedError, match="killed by SIGKILL while starting"):
        asyncio.run(toy_process().start())


def test_an_engine_for_which_there_is_no_memory_or_file_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise OSError(errno.EMFILE, "planted")

    async def lose_and_start_again() -> None:
        async with toy_process() as engine:
            [supervisor] = engine.running.replicas.supervisors
            monkeypatch.setattr(link, "share_board", refuse)
            assert supervisor.link is not None
            supervisor.link.kill("planted")
            await until(lambda: supervisor.num_restarts > 1)
            monkeypatch.undo()
            await until(lambda: engine.load().is_alive)

    asyncio.run(lose_and_start_again())
    monkeypatch.setattr(link, "share_board", refuse)
    with pytest.raises(EngineStoppedError, match="did not start: planted"):
        asyncio.run(toy_process().start())


def test_nothing_of_a_lost_engine_is_kept() -> None:
    async def lose_and_start_again() -> None:
        async with toy_process() as engine:
            [supervisor] = engine.running.replicas.supervisors
            assert supervisor.link is not None
            lost = weakref.ref(supervisor.link)
            supervisor.link.kill("planted")
            await until(lambda: supervisor.num_restarts == 1 and engine.load().is_alive)
            gc.collect()
            assert lost() is None, "its board is an open file"

    asyncio.run(lose_and_start_again())


HANGS = {
    "importing plugin 'slow' (slow 1.0)": "import time; time.sleep(3600)",
    "in 'register' of plugin 'slow' (slow 1.0)": """
        @hookimpl
        def register(registry):
            import ctypes
            ctypes.PyDLL(None).pause()
        """,
    "building observer 'slow' of plugin 'slow' (slow 1.0)": """
        @hookimpl
        def register(registry):
            registry.offer(kinds.OBSERVER, "slow", make)

        def make(context):
            while True:
                pass
        """,
    "in 'lifespan' of plugin 'slow' (slow 1.0)": """
        import contextlib, time

        @contextlib.asynccontextmanager
        async def wait():
            time.sleep(3600)
            yield

        @hookimpl
        def lifespan(engine):
            return wait()
        """,
}
AWAITS = HANGS["in 'lifespan' of plugin 'slow' (slow 1.0)"].replace(
    "time.sleep(3600)", "await __import__('asyncio').sleep(3600)"
)


def start_with(packages: Packages, code: str) -> None:
    packages.install("slow", code)
    packages.write_settings("[plugins]\nenable = ['slow']\n")
    asyncio.run(toy_process(plugin_start_timeout=1.0).start())


@pytest.mark.parametrize("stage", HANGS)
def test_a_plugin_that_hangs_at_the_start_ends_it_and_is_named(
    stage: str, packages: Packages
) -> None:
    with pytest.raises(EngineStoppedError) as error:
        start_with(packages, HANGS[stage])
    how = f"the engine's process did not start: ended with status 1 while {stage}"
    assert str(error.value) == how


def test_a_lifespan_that_waits_for_ever_is_a_failed_start(packages: Packages) -> None:
    with pytest.raises(PluginError, match=r"plugin 'slow' \(slow 1.0\) failed in 'lifespan': Time"):
        start_with(packages, AWAITS)
