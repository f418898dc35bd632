"""Hundreds of requests at once with new grammars are all answered, by server and library."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator

import pytest

from tests.server_process import RunningServer, running_server
from tokenmill import LLM, Grammar, SamplingParams

from .calling import Answer, Call, Client

ONE_NEW = [{"enum": ["one", "new"]}] * 500
ALL_NEW = [{"const": f"number {i}"} for i in range(100)]
MAX_TOKENS = 12
PATIENCE = 1800.0
FLAGS = ("--num-gpu-blocks-override", "1000", "--no-enable-log-requests")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("server"), *FLAGS) as server:
        yield server


@pytest.mark.parametrize("schemas", [ONE_NEW, ALL_NEW], ids=["one new", "all new"])
def test_the_server_answers_all(
    server: RunningServer,
    schemas: list[dict[str, object]],
    record_property: Callable[[str, object], None],
) -> None:
    client = Client(server.url, PATIENCE)

    async def ask() -> list[Answer]:
        calls = (call(schema) for schema in schemas)
        return await asyncio.gather(*map(client.ask, calls))

    answers = asyncio.run(ask())
    assert [answer.status for answer in answers] == [200] * len(schemas)
    texts = [answer.json()["choices"][0]["text"] for answer in answers]
    assert all(map(is_valid, texts, schemas))
    record_property("answers", len(texts))
    server.wait_until_empty(60)


def call(schema: dict[str, object]) -> Call:
    fields = {"prompt": "One:", "max_tokens": MAX_TOKENS, "structured_outputs": {"json": schema}}
    return Call.of("/v1/completions", fields)


def is_valid(text: str, schema: dict[str, object]) -> bool:
    allowed = schema.get("enum", [schema.get("const")])
    assert isinstance(allowed, list)
    return json.loads(text) in allowed


@pytest.mark.parametrize("schemas", [ONE_NEW, ALL_NEW], ids=["one new", "all new"])
def test_the_library_answers_all(schemas: list[dict[str, object]]) -> None:
    params = [
        SamplingParams(max_tokens=MAX_TOKENS, grammar=Grammar.json_schema(schema))
        for schema in schemas
    ]
    with LLM(num_gpu_blocks_override=1000) as llm:
        outputs = llm.generate(["One:"] * len(schemas), params, use_tqdm=False)
    assert all(map(is_valid, (output.outputs[0].text for output in outputs), schemas))
