"""`tokenmill why`: the parts add up to the latency, and a planted cause is named first."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from tokenmill.api.cli import main
from tokenmill.core.contract.explanation import Explanation
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.plan import StepPlan, StepResult
from tokenmill.core.processes.place import Place
from tokenmill.core.requests.grammar import Grammar, GrammarKind
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.core.shell.engine_shell import EngineShell
from tokenmill.core.shell.served import READING
from tokenmill.testing.simulated.executor import SimulatedExecutor

from .serving import PATIENCE, Served, SteeredExecutor, serve_engine, toy_engine
from .toy_process import toy_process, until

ADMIN = {"Authorization": "Bearer sk-admin"}
PLANTED = 0.3
"""Seconds that a planted cause takes. Everything else takes milliseconds."""


# Planted causes


class Device(SimulatedExecutor):
    """A step takes as long as its tokens."""

    def __init__(self, seconds_per_token: float = 0.0) -> None:
        super().__init__(num_blocks=256, block_size=4)
        self._seconds_per_token = seconds_per_token

    def run(self, plan: StepPlan) -> StepResult:
        time.sleep(self._seconds_per_token * plan.num_tokens)
        return super().run(plan)


class SlowPlugin:
    """A wrapper that thinks before each step."""

    @hookimpl(wrapper=True)
    def schedule(self, step: Any) -> Iterator[None]:
        time.sleep(PLANTED / 4)
        return (yield)


class SlowGrammars:
    """Compiles each grammar for a while, off the event loop."""

    async def check(self, grammar: Grammar) -> tuple[str, ...]:
        await asyncio.sleep(PLANTED)
        return ()

    def prepare(self) -> None:
        pass

    def close(self) -> None:
        pass


def params(max_tokens: int = 4, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=1, **more)


async def ask(engine: EngineShell, prompt: str, name: str, **given: Any) -> None:
    async for _ in engine.generate(prompt, params(**given), request_id=name):
        pass


async def long_prompt(engine: EngineShell) -> None:
    """A long prompt comes while the victim decodes."""
    asking = asyncio.create_task(ask(engine, "abc", "victim", max_tokens=8))
    await until(lambda: engine.load().num_running)
    await asyncio.gather(asking, ask(engine, "x" * 250, "other", max_tokens=1))


async def full_pool(engine: EngineShell) -> None:
    """Another request holds the blocks that the victim needs."""
    holder = asyncio.create_task(ask(engine, "y" * 40, "holder", max_tokens=20))
    await until(lambda: engine.load().num_running)
    await asyncio.gather(holder, ask(engine, "z" * 40, "victim", max_tokens=2))


async def alone(engine: EngineShell) -> None:
    await ask(engine, "abc", "victim")


async def slow_client(engine: EngineShell) -> None:
    """The reader takes its time for the last output."""
    async with aclosing(engine.generate("abc", params(), request_id="victim")) as outputs:
        async for output in outputs:
            await asyncio.sleep(PLANTED if output.finished else 0.0)


async def grammar(engine: EngineShell) -> None:
    await ask(engine, "abc", "victim", grammar=Grammar(kind=GrammarKind.REGEX, text="a*"))


Plan = tuple[Callable[[], EngineShell], Callable[[EngineShell], Awaitable[None]], str]
CAUSES: dict[str, Plan] = {
    "long prompt": (
        lambda: toy_engine(Device(PLANTED / 250)),
        long_prompt,
        "prompts of other requests between its tokens",
    ),
    "full pool": (
        lambda: toy_engine(SteeredExecutor(num_blocks=16, step_seconds=PLANTED / 20)),
        full_pool,
        "no free blocks",
    ),
    "slow plugin": (
        lambda: toy_engine(Device(), extra=[SlowPlugin()]),
        alone,
        "plugins, mostly SlowPlugin (schedule)",
    ),
    "slow client": (lambda: toy_engine(Device()), slow_client, READING),
    "grammar": (
        lambda: toy_engine(Device(), grammars=SlowGrammars()),
        grammar,
        "its grammar was compiled",
    ),
}


async def explain(name: str) -> Explanation:
    """Plant a cause, and return the explanation of the request that it hits."""
    make, plant, _ = CAUSES[name]
    async with make() as engine:
        began = time.monotonic()
        await plant(engine)
        seconds = time.monotonic() - began
        [found] = await engine.explain("victim")
    assert found.seconds <= seconds
    assert sum(one for _, one in found.causes) == pytest.approx(found.seconds, abs=0.001)
    return found


@pytest.mark.parametrize("name", CAUSES)
def test_a_planted_cause_is_named_first(name: str) -> None:
    found = asyncio.run(explain(name))
    assert found.causes[0][0] == CAUSES[name][2], found.causes
    if name == "long prompt":
        assert found.longest_gap is not None and found.longest_gap.cause == "other"
    if name == "full pool":
        assert found.held_by == ("holder",)


@pytest.mark.soak
@pytest.mark.parametrize("name", CAUSES)
def test_a_planted_cause_is_named_first_twenty_times_of_twenty(name: str) -> None:
    for _ in range(20):
        test_a_planted_cause_is_named_first(name)


def test_a_request_of_a_lost_engine_has_waited_for_another_one() -> None:
    async def run() -> Explanation:
        async with toy_process(places=(Place(), Place()), max_restarts=9) as engine:
            running: Any = engine.running
            stream = await engine.submit("abc", params(200), request_id="victim")
            await until(lambda: engine.load().num_running)
            [(link, _)] = running.replicas.open_requests()
            os.kill(link.pid, signal.SIGKILL)
            await until(lambda: stream.num_engines == 2)  # type: ignore[attr-defined]
            async for _ in stream:
                pass
            [found] = await engine.explain("victim")
            return found

    found = asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert found.waiting["the engine restarted"] > 0  # type: ignore[index]
    assert found.finish_reason == "length"
    assert sum(one for _, one in found.causes) == pytest.approx(found.seconds, abs=0.001)


# The server and the command


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The default: an engine in a process of its own."""
    with serve_engine(toy_process(), admin_key="sk-admin") as served:
        yield served


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def complete(http: httpx.Client, name: str, **more: Any) -> str:
    body = {"prompt": "abc", "max_tokens": 5, "ignore_eos": True} | more
    answer = http.post("/v1/completions", json=body, headers={"X-Request-Id": name})
    found: str = answer.json()["id"]
    return found


def why(served: Served, *words: str) -> int:
    return main(["why", *words, "--url", served.url, "--admin-key", "sk-admin"])


def test_the_route_explains_the_request_whose_id_the_answer_has(http: httpx.Client) -> None:
    name = complete(http, "one")
    [found] = http.get(f"/debug/requests/{name}", headers=ADMIN).json()["requests"]
    assert (found["request_id"], found["finish_reason"]) == (name, "length")
    assert (found["num_prompt_tokens"], found["num_generated_tokens"]) == (3, 5)
    total = sum(cause["seconds"] for cause in found["causes"])
    assert total == pytest.approx(found["seconds"], abs=0.001)


def test_all_choices_of_a_request_are_explained(http: httpx.Client) -> None:
    name = complete(http, "several", n=3)
    found = http.get(f"/debug/requests/{name}", headers=ADMIN).json()["requests"]
    assert sorted(one["choice_index"] for one in found) == [0, 1, 2]


def test_a_live_request_is_explained_up_to_now(served: Served, http: httpx.Client) -> None:
    call = threading.Thread(target=complete, args=(http, "live"), kwargs={"max_tokens": 300})
    call.start()
    served.wait_until(lambda load: load["num_running"] == 1)
    [found] = http.get("/debug/requests/cmpl-live", headers=ADMIN).json()["requests"]
    call.join()
    assert found["finish_reason"] is None and found["num_generated_tokens"] < 300


def test_an_unknown_request_and_a_wrong_number_are_refused(http: httpx.Client) -> None:
    answer = http.get("/debug/requests/nobody", headers=ADMIN)
    assert (answer.status_code, "not in the step log" in answer.text) == (404, True)
    for count in ("0", "x", "9999999"):
        url = f"/debug/requests?slowest={count}"
        assert http.get(url, headers=ADMIN).status_code == 400


def test_without_a_step_log_the_answer_says_so() -> None:
    engine = toy_engine(step_log_size=0)
    with serve_engine(engine, admin_key="sk-admin") as served, served.client() as http:
        name = complete(http, "none")
        answer = http.get(f"/debug/requests/{name}", headers=ADMIN)
    assert answer.status_code == 404 and "--step-log-size 0" in answer.text


def test_the_command_prints_a_line_per_part(
    served: Served, http: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    name = complete(http, "printed")
    assert why(served, name) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith(f"{name} · prompt 3 · 5 generated · ")
    assert [line.split()[0] for line in lines][-3:] == ["prompt", "decode", "server"]
    assert "4 tokens in 4 steps; longest gap" in lines[-2]


def test_the_command_lists_the_slowest_and_prints_json(
    served: Served, http: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    name = complete(http, "slow", max_tokens=120)
    assert why(served, "--slowest", "50") == 0
    assert name in capsys.readouterr().out
    assert why(served, "--slowest", "50", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    latencies = [one["seconds"] for one in found]
    assert latencies == sorted(latencies, reverse=True)
    assert name in [one["request_id"] for one in found]


def test_the_requests_of_one_key_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with serve_engine(toy_engine(), api_keys=["sk-a", "sk-b"], admin_key="sk-admin") as served:
        with served.client(headers={"Authorization": "Bearer sk-a"}) as http:
            name = complete(http, "of-a")
        with served.client(headers={"Authorization": "Bearer sk-b"}) as http:
            other = complete(http, "of-b")
        assert why(served, "--slowest", "9", "--json") == 0
        keys = {one["request_id"]: one["api_key_id"] for one in json.loads(capsys.readouterr().out)}
        assert why(served, "--key", keys[name]) == 0
        shown = capsys.readouterr().out
    assert name in shown and other not in shown


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("nobody",), "not in the step log"),
        (("nobody", "--admin-key", "wrong"), "does not know the API key"),
    ],
)
def test_a_wrong_call_gets_one_line(
    served: Served, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], reason: str
) -> None:
    assert main(["why", "--url", served.url, "--admin-key", "sk-admin", *words]) == 1
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1


def test_a_server_without_an_admin_key_is_named(
    toy: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why(toy, "anything") == 1
    assert "start it with --admin-key" in capsys.readouterr().err
