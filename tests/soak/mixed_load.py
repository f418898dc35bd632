"""Clients of all kinds, engines that die, and what the server needs meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable

from tests.server_process import RunningServer

from . import watching
from .asking import Asker
from .calling import Answer, Call, Client, NoAnswerError
from .watching import Sample

NUM_CLIENTS = 16
PAUSE = 0.1
"""Seconds that a client waits on average before its next request."""
BAD = 0.08
"""Fraction of bad requests."""
LEAVING = 0.12
"""Fraction of clients that leave early."""
FAULTS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV)
BETWEEN_FAULTS = (150.0, 270.0)
"""Seconds. More than five restarts within ten minutes would end the server."""
FAULTY = 0.5
"""Fraction of the time in which engines fail. The last engine shows how its memory grows."""
STALL_SECONDS = 90.0
"""Seconds that a stalled reader reads nothing. When its buffers are full, the server waits for 30
seconds, and hangs up."""
SAMPLE_SECONDS = 5.0


class MixedLoad:
    """The load on one server, and what became of its requests."""

    def __init__(self, server: RunningServer, seconds: float) -> None:
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        """Requests that got no right answer or error."""
        self.faults: Counter[str] = Counter()
        self.restart_seconds: list[float] = []
        self.health_seconds: list[float] = []
        self.server_samples: list[Sample] = []
        self.engine_samples: list[Sample] = []
        self._server = server
        self._client = Client(server.url)
        began = time.monotonic()
        self._end = began + seconds
        self._last_fault = began + FAULTY * seconds
        self._is_whole = True
        """False from a fault until the next engine is ready."""

    async def run(self, model: str, *, with_logits: bool) -> None:
        async with asyncio.TaskGroup() as group:
            *askers, staller = (
                Asker(number, model, with_logits=with_logits) for number in range(NUM_CLIENTS + 1)
            )
            for asker in askers:
                group.create_task(self._be_client(asker))
            group.create_task(self._be_stalled_reader(staller))
            group.create_task(self._fail_engines(random.Random(5)))
            group.create_task(self._check_health())
            group.create_task(self._sample())

    def _goes_on(self) -> bool:
        return time.monotonic() < self._end

    # Clients

    async def _be_client(self, asker: Asker) -> None:
        while self._goes_on():
            await asyncio.sleep(asker.rng.expovariate(1 / PAUSE))
            kind = asker.rng.random()
            if kind < BAD:
                await self._note(self._ask(asker.bad()))
            elif kind < BAD + LEAVING:
                await self._note(self._leave(asker.good(), asker.rng.uniform(0, 1)))
            else:
                await self._note(self._ask(asker.good()))

    async def _be_stalled_reader(self, asker: Asker) -> None:
        while self._goes_on():
            await self._note(self._stall(asker.long()))

    async def _note(self, outcome: Awaitable[str]) -> None:
        try:
            self.outcomes[await outcome] += 1
        except (NoAnswerError, OSError, ValueError) as error:
            self.outcomes["without an answer"] += 1
            self.wrong.append(f"{type(error).__name__}: {error}")

    async def _ask(self, call: Call) -> str:
        began = self._engine_state()
        answer = await self._client.ask(call)
        was_whole = self._is_whole and began == self._engine_state()
        outcome, is_right = judge(call, answer, was_whole)
        if not is_right:
            self.wrong.append(f"{call}: {answer.status} {answer.body[-500:]!r}")
        return outcome

    def _engine_state(self) -> tuple[bool, int]:
        return self._is_whole, self.faults.total()

    async def _leave(self, call: Call, seconds: float) -> str:
        await self._client.leave(call, seconds)
        return "left by the client"

    async def _stall(self, call: Call) -> str:
        was_hung_up = await self._client.stall(call, STALL_SECONDS)
        return "stalled, and hung up on" if was_hung_up else "stalled, then read"

    # Faults

    async def _fail_engines(self, rng: random.Random) -> None:
        number = 0
        while await self._wait(rng.uniform(*BETWEEN_FAULTS)):
            await self._fail_engine(FAULTS[number % len(FAULTS)])
            number += 1

    async def _wait(self, seconds: float) -> bool:
        """Whether engines still fail afterwards."""
        if time.monotonic() + seconds > self._last_fault:
            return False
        await asyncio.sleep(seconds)
        return True

    async def _fail_engine(self, fault: signal.Signals) -> None:
        [engine] = self._engines()
        began = time.monotonic()
        self._is_whole = False
        self.faults[fault.name] += 1
        os.kill(engine, fault)
        while engine in self._engines() or not await self._is_ready():  # noqa: ASYNC110 (of processes)
            await asyncio.sleep(0.2)
        self._is_whole = True
        self.restart_seconds.append(time.monotonic() - began)

    def _engines(self) -> list[int]:
        return watching.children(self._server.process.pid)

    async def _is_ready(self) -> bool:
        return (await self._client.get("/ready")).status == 200

    # The server

    async def _check_health(self) -> None:
        while self._goes_on():
            began, state = time.monotonic(), self._engine_state()
            answer = await self._client.get("/health")
            self.health_seconds.append(time.monotonic() - began)
            if answer.status != 200 and self._is_whole and state == self._engine_state():
                self.wrong.append(f"/health: {answer.status} {answer.body!r}")
            await asyncio.sleep(1)

    async def _sample(self) -> None:
        while self._goes_on():
            self.server_samples.append(self._sample_of(self._server.process.pid))
            if self._is_whole:
                [engine] = self._engines()
                self.engine_samples.append(self._sample_of(engine))
            await asyncio.sleep(SAMPLE_SECONDS)

    def _sample_of(self, pid: int) -> Sample:
        return Sample(
            pid=pid,
            num_requests=self.outcomes.total(),
            rss=watching.rss(pid),
        )


def judge(call: Call, answer: Answer, was_whole: bool) -> tuple[str, bool]:
    """What became of a request, and whether it is right. `was_whole`: no engine failed
    meanwhile."""
    if answer.is_error_event:
        is_right = not was_whole and b"the engine failed" in answer.body
        return "a stream that ended with an error", is_right
    if answer.status == 503:
        return "503", not was_whole
    is_right = answer.status in call.statuses
    return ("answered" if answer.status == 200 else "refused with 4xx"), is_right
