"""An engine process that ends while it starts: what is reported."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tokenmill.core.errors import EngineStoppedError

from .toy_process import START_FAULT, toy_process, until


@pytest.mark.parametrize(("fault", "how"), [("K", "killed by SIGKILL"), ("C", "killed by SIGSEGV")])
def test_the_error_names_the_signal_and_the_stage(
    fault: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(START_FAULT, fault)
    with pytest.raises(EngineStoppedError) as error:
        asyncio.run(toy_process().start())
    assert str(error.value) == (f"the engine's process did not start: {how} while loading the toy")


def test_a_process_that_is_killed_before_its_first_stage_was_starting() -> None:
    async def start_and_kill() -> None:
        engine = toy_process()
        starting = asyncio.create_task(engine.start())
        [supervisor] = engine.replicas.supervisors
        await until(lambda: supervisor.link is not None)
        assert supervisor.link is not None
        os.kill(supervisor.link.pid, signal.SIGKILL)
        await starting

    with pytest.raises(EngineStoppedError, match="killed by SIGKILL while starting"):
        asyncio.run(start_and_kill())
