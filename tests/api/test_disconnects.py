"""Clients that leave, that read slowly, and that come in crowds: nothing stays held."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from collections.abc import Awaitable, Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from tokenmill.api.http.connections import connection
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.policy import Arrival, RequestView
from tokenmill.core.host.calling import preparing
from tokenmill.core.plan import StepPlan, StepResult
from tokenmill.core.requests.grammar import Grammar

from .serving import PATIENCE, Served, SteeredExecutor, serve_engine, toy_engine

ENDLESS = 15_000
"""Tokens that take longer than PATIENCE."""
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    """A step takes 5 ms. No request ends by itself while a test waits for its end."""
    executor = SteeredExecutor(num_blocks=8192, step_seconds=0.005)
    with serve_engine(toy_engine(executor, max_model_len=2 * ENDLESS)) as served:
        yield served


def send(served: Served, **fields: object) -> socket.socket:
    """A request on a socket of its own, which the test reads and closes as it likes."""
    target = urlsplit(served.url)
    body = json.dumps({"prompt": "abc", "max_tokens": ENDLESS, **fields}).encode()
    sock = socket.create_connection((target.hostname or "", target.port or 0), timeout=PATIENCE)
    sock.sendall(HEAD % len(body) + body)
    return sock


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(slow: Served, stream: bool, n: int) -> None:
    with send(slow, stream=stream, n=n) as sock:
        slow.wait_until(lambda load: load["num_running"] == n and load["kv_cache_usage"] > 0)
        if stream:
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
    slow.wait_idle()


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_ends_all_prompts_of_a_list(slow: Served, stream: bool) -> None:
    with send(slow, stream=stream, prompt=["a", "bc", "def"]):
        slow.wait_until(lambda load: load["num_running"] == 3)
    slow.wait_idle()


def test_a_client_that_leaves_while_waiting_is_forgotten() -> None:
    executor = SteeredExecutor()
    executor.gate.clear()
    with serve_engine(toy_engine(executor, max_num_seqs=1)) as served:
        with send(served, max_tokens=100):
            served.wait_until(lambda load: load["num_running"] == 1)
            with send(served, max_tokens=100):
                served.wait_until(lambda load: load["num_waiting"] == 1)
            served.wait_until(lambda load: load["num_waiting"] == 0)
        executor.gate.set()
        served.wait_idle()


class Counting(SteeredExecutor):
    num_tokens = 0

    def run(self, plan: StepPlan) -> StepResult:
        self.num_tokens += plan.num_tokens
        return super().run(plan)


class SlowChecker:
    """Grammars that are compiled when `gate` is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.num_waiting = 0

    async def check(self, grammar: Grammar) -> tuple[str, ...]:
        self.num_waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.num_waiting -= 1
        return ()

    def prepare(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_its_grammar_compiles_asks_for_nothing(stream: bool) -> None:
    checker = SlowChecker()
    with serve_engine(toy_engine(grammars=checker)) as served:
        with send(served, stream=stream, max_tokens=5, structured_outputs={"regex": "a+"}):
            served.wait_until(lambda load: checker.num_waiting == 1)
        served.wait_until(lambda load: checker.num_waiting == 0 and load["num_waiting"] == 0)
        with served.client() as http:
            assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 200
        served.wait_idle()


class SlowLookup:
    """Asks another machine, which never answers, about prompts that contain "x"."""

    def __init__(self) -> None:
        self.num_waiting = 0
        self.admitted: list[int] = []
        """Lengths of the prompts that were admitted."""

    @hookimpl
    def before_admit(self, arrival: Arrival) -> Awaitable[None] | None:
        return self.look_up() if ord("x") in arrival.prompt_token_ids else None

    async def look_up(self) -> None:
        self.num_waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.num_waiting -= 1

    @hookimpl
    def admit(self, request: RequestView) -> None:
        self.admitted.append(request.num_prompt_tokens)


@pytest.mark.parametrize(("prompt", "num_before"), [("xyz", 0), (["abcd", "xyz", "def"], 1)])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_a_plugin_looks_up_its_prompt_is_not_admitted(
    stream: bool, prompt: object, num_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "WAIT_SECONDS", 10 * PATIENCE)
    lookup = SlowLookup()
    with serve_engine(toy_engine(extra=[lookup], max_model_len=900)) as served:
        with send(served, stream=stream, prompt=prompt, max_tokens=800):
            served.wait_until(lambda load: lookup.num_waiting == 1)
        served.wait_until(lambda load: lookup.num_waiting == 0)
        served.wait_idle()
    assert lookup.admitted == [4] * num_before


def test_a_client_that_leaves_between_the_chunks_of_its_prompt_frees_their_blocks() -> None:
    executor = Counting(num_blocks=1024)
    executor.gate.clear()
    engine = toy_engine(executor, max_num_batched_tokens=64, max_model_len=4000)
    with serve_engine(engine) as served:
        with send(served, prompt="a" * 1000, max_tokens=1):
            served.wait_until(lambda load: load["kv_cache_usage"] > 0)
        served.wait_until(lambda load: load["num_running"] == 0)
        executor.gate.set()
        served.wait_idle()
    assert 0 < executor.num_tokens < 1000


def test_two_hundred_clients_of_whom_many_leave_hold_nothing_in_the_end(slow: Served) -> None:
    rng = random.Random(5)

    async def ask(http: httpx.AsyncClient, number: int) -> str:
        body = {
            "prompt": "abcdefgh" * rng.randint(1, 20),
            "max_tokens": rng.randint(1, 60),
            "stream": number % 2 == 0,
            "n": rng.choice([1, 1, 2]),
        }
        patience = rng.choice([None, rng.uniform(0, 1.5)])
        try:
            async with asyncio.timeout(patience):
                answer = await http.post("/v1/completions", json=body)
        except TimeoutError:
            return "left"
        assert answer.status_code == 200
        if body["stream"]:
            assert answer.text.endswith("data: [DONE]\n\n")
        return "answered"

    async def main() -> list[str]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=slow.url, limits=limits, timeout=60, trust_env=False
        ) as http:
            return await asyncio.gather(*(ask(http, i) for i in range(200)))

    results = asyncio.run(main())
    assert results.count("left") > 10 and results.count("answered") > 10
    slow.wait_idle()


def test_a_client_that_does_not_read_holds_up_nobody(slow: Served) -> None:
    with send(slow, stream=True, n=8, max_tokens=3000):
        slow.wait_until(lambda load: load["num_running"] == 8)
        with slow.client() as http:
            answer = http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 20})
        assert answer.json()["usage"]["completion_tokens"] == 20
    slow.wait_idle()


def test_a_client_that_leaves_before_its_body_is_complete_disturbs_nobody(slow: Served) -> None:
    target = urlsplit(slow.url)
    for _ in range(5):
        with socket.create_connection((target.hostname or "", target.port or 0)) as sock:
            sock.sendall(HEAD % 99 + b"{")
    with slow.client() as http:
        assert http.get("/health").status_code == 200
    slow.wait_idle()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_ends_only_its_own_side_gets_its_answer(slow: Served, stream: bool) -> None:
    with send(slow, stream=stream, max_tokens=60) as sock:
        slow.wait_until(lambda load: load["num_running"] == 1)
        sock.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert b'"finish_reason":"length"' in answer
    slow.wait_idle()


def test_a_stalled_reader_is_hung_up_on(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALL_SECONDS", 0.2)
    with send(slow, stream=True, n=32, max_tokens=3000, logprobs=20) as sock:
        slow.wait_until(lambda load: load["num_running"] == 32)
        slow.wait_until(lambda load: load["num_running"] == 0)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert b"[DONE]" not in answer
    slow.wait_idle()
