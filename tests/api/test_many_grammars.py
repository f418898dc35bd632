"""Many requests at once with new grammars: over HTTP, and in the library."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest

from tests.backends.grammar.toy import SPEC
from tokenmill import LLM, Grammar, SamplingParams
from tokenmill.backends.grammar import checking
from tokenmill.backends.grammar.checking import GrammarChecker
from tokenmill.backends.grammar.grammars import Grammars
from tokenmill.backends.grammar.llguidance.backend import LLGuidance
from tokenmill.backends.grammar.worker import WorkerStart

from .serving import PATIENCE, Served, serve_engine, toy_engine

BODY = {"prompt": "abc", "max_tokens": 2}
START = WorkerStart(
    factory="tokenmill.backends.grammar.llguidance.plugin:make_llguidance",
    options=None,
    options_type=None,
    spec=SPEC,
)


def make_checker() -> GrammarChecker:
    return GrammarChecker(START, Grammars(lambda: LLGuidance(SPEC)))


class Crowd:
    """Clients that ask at once, each with a schema."""

    def __init__(self, served: Served, schemas: Sequence[object]) -> None:
        self._url = f"{served.url}/v1/completions"
        self._schemas = schemas

    async def ask(self) -> AsyncIterator[httpx.Response]:
        """The answers in the order in which they come."""
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=PATIENCE, limits=limits, trust_env=False) as client:
            asking = [self._ask(client, schema) for schema in self._schemas]
            for answer in asyncio.as_completed(asking):
                yield await answer

    async def _ask(self, client: httpx.AsyncClient, schema: object) -> httpx.Response:
        return await client.post(self._url, json=BODY | {"structured_outputs": {"json": schema}})


def test_requests_with_new_schemas_wait_and_with_too_many_they_are_refused_for_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checking, "MAX_WAITING", 20)
    checker = make_checker()
    is_free = threading.Event()

    async def statuses(crowd: Crowd) -> Counter[int]:
        return Counter([answer.status_code async for answer in crowd.ask()])

    async def refused_and_answered(crowd: Crowd) -> Counter[int]:
        found: Counter[int] = Counter()
        async for answer in crowd.ask():
            found[answer.status_code] += 1
            assert answer.status_code == 200 or answer.headers["retry-after"] == "1"
            if found[503] == 5:  # without the worker, no other request is answered before
                is_free.set()
        return found

    with serve_engine(toy_engine(grammars=checker)) as served:
        new = [{"const": "same"}] * 81 + [{"const": i} for i in range(19)]
        assert asyncio.run(statuses(Crowd(served, new))) == {200: 100}
        checker.small.trying.thread.submit(is_free.wait)
        try:
            newer = [{"const": f"new {i}"} for i in range(25)]
            assert asyncio.run(refused_and_answered(Crowd(served, newer))) == {200: 20, 503: 5}
        finally:
            is_free.set()


def test_a_batch_of_the_library_waits_for_its_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "MAX_WAITING", 4)
    monkeypatch.setattr(
        "tokenmill.llm.AsyncEngine", lambda model, **options: toy_engine(grammars=make_checker())
    )
    schemas = [{"const": "same"}] * 50 + [{"const": i} for i in range(20)]
    params = [SamplingParams(max_tokens=2, grammar=Grammar.json_schema(s)) for s in schemas]
    with LLM() as llm:
        outputs = llm.generate(["abc"] * len(params), params, use_tqdm=False)
    assert all(output.finished for output in outputs)
