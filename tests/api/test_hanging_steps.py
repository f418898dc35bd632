"""A step that hangs is found, whatever its number, and however it hangs."""

from __future__ import annotations

import asyncio

import pytest

from tokenmill.core.contract.client import STALL_FACTOR
from tokenmill.core.errors import EngineStoppedError
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.supervised.supervisor import EngineSupervisor

from .toy_process import STEP_FAULT, toy_process

SLACK_SECONDS = 2.0
PARAMS = SamplingParams(max_tokens=600, ignore_eos=True)


def check_found_in_time(supervisor: EngineSupervisor) -> None:
    """It counts the time in which the process did not wait for a CPU."""
    link = supervisor.link
    assert link is not None and link.blame.startswith("made no step for ")
    seconds = float(link.blame.split()[-2])
    assert seconds <= STALL_FACTOR * link.board.expected_seconds + SLACK_SECONDS


async def check_hang() -> None:
    """Let an engine compute until the step of STEP_FAULT hangs."""
    async with toy_process(max_restarts=0, max_model_len=1000) as engine:
        [supervisor] = engine.running.replicas.supervisors
        with pytest.raises(EngineStoppedError):
            async for _ in engine.generate("a story", PARAMS):
                pass
        await supervisor.given_up.wait()
        check_found_in_time(supervisor)


@pytest.mark.parametrize("fault", ["S 1", "L 2", "H 500"])
def test_a_hang_is_found_in_time(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STEP_FAULT, fault)
    asyncio.run(check_hang())
