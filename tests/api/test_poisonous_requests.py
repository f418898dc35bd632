"""Requests that end the engine, among clients that send again what was lost."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import weakref
from collections.abc import Iterable

from tokenmill.core.errors import EngineStoppedError, InvalidRequestError, OverloadedError
from tokenmill.core.processes.watching.board import Board
from tokenmill.core.requests.sampling_params import OutputKind, SamplingParams
from tokenmill.core.shell.engine_shell import EngineShell
from tokenmill.core.supervised.supervisor import EngineSupervisor

from .toy_process import toy_process, until

RETRY_SECONDS = 0.05
PARAMS = SamplingParams(max_tokens=20, ignore_eos=True, output_kind=OutputKind.FINAL)
ANSWERED, REFUSED = "answered", "refused"


async def ask(engine: EngineShell, prompt: str, params: SamplingParams = PARAMS) -> str:
    """How a client's request ends. It sends again until there is an answer, or a 400."""
    while engine.running.replicas.failure is None:
        try:
            async for output in engine.generate(prompt, params):
                if output.finished:
                    return ANSWERED
        except InvalidRequestError:
            return REFUSED
        except (EngineStoppedError, OverloadedError):
            await asyncio.sleep(RETRY_SECONDS)
    return "given up"


async def ask_all(engine: EngineShell, prompts: Iterable[str]) -> list[str]:
    return await asyncio.gather(*(ask(engine, prompt) for prompt in prompts))


def board_of(supervisor: EngineSupervisor) -> Board:
    assert supervisor.ready_link is not None
    return supervisor.ready_link.board


def test_every_innocent_of_fifty_clients_is_answered_and_the_poison_is_refused() -> None:
    async def run() -> None:
        async with toy_process(max_restarts=2) as engine:
            innocents = [f"{number} says" for number in range(50)]
            answers = await ask_all(engine, [*innocents[:20], *["Crash"] * 5, *innocents[20:]])
            assert answers == [ANSWERED] * 20 + [REFUSED] * 5 + [ANSWERED] * 30
            assert engine.running.replicas.supervisors[0].num_restarts == 2
            changed = PARAMS.with_changes(max_tokens=21, seed=1)
            assert await ask(engine, "Crash", changed) == REFUSED

    asyncio.run(run())


def test_six_poisons_at_once_are_refused_and_do_not_use_up_the_restarts() -> None:
    async def run() -> None:
        async with toy_process(max_restarts=1) as engine:
            poisons = [f"C{number}" for number in range(6)]
            answers = await ask_all(engine, [*poisons, "an innocent", "another one"])
            assert answers == [REFUSED] * 6 + [ANSWERED] * 2
            [supervisor] = engine.running.replicas.supervisors
            assert supervisor.num_restarts > 6, "together or one by one, and then each alone"
            assert supervisor.failure is None

    asyncio.run(run())


def test_a_request_is_no_suspect_of_a_kill_from_outside() -> None:
    async def run() -> None:
        async with toy_process(max_restarts=9) as engine:
            [supervisor] = engine.running.replicas.supervisors
            long = PARAMS.with_changes(max_tokens=100)
            for _ in range(3):
                asked = asyncio.create_task(ask(engine, "an innocent", long))
                await until(lambda: board_of(supervisor).progress.num_finished > 1)
                os.kill(supervisor.ready_link.pid, signal.SIGKILL)
                assert await asked == ANSWERED

    asyncio.run(run())


def test_a_poison_whose_client_has_left_is_still_known() -> None:
    async def run() -> None:
        async with toy_process(stall_timeout=0.5) as engine:
            [supervisor] = engine.running.replicas.supervisors
            for number in range(2):
                stream = await engine.submit("Hang", PARAMS)
                await until(lambda: board_of(supervisor).in_work())
                await stream.aclose()
                await until(lambda number=number: supervisor.num_restarts > number)
                await until(lambda: supervisor.ready_link)
            assert await ask(engine, "Hang") == REFUSED

    asyncio.run(run())


def test_a_prompt_is_not_kept_after_its_client_has_left() -> None:
    async def run() -> None:
        async with toy_process() as engine:
            stream = await engine.submit("Long", PARAMS.with_changes(max_tokens=500))
            left = weakref.ref(stream)
            await stream.aclose()
            del stream
            gc.collect()
            assert left() is None

    asyncio.run(run())
