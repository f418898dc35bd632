"""Answers of the real model to the schemas of Debian's json-schema-test-suite, through the API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.check.test_json_schema_suite import Case, cases, check, is_bounded, names_keyword
from tests.server_process import running_server

from .calling import Answer, Call, Client

SEEDS = (1, 2, 3)
MAX_TOKENS, MAX_UNBOUNDED_TOKENS = 400, 64
NUM_AT_ONCE = 24
FLAGS = ("--num-gpu-blocks-override", "1000", "--no-enable-log-requests")


def test_answers_that_stop_validate_bounded_ones_stop_and_refusals_name_keywords(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with running_server(tmp_path, *FLAGS) as server:
        served, refused = asyncio.run(ask_all(Client(server.url)))
        assert server.wait_until_empty(60)["kv_cache_usage"] == 0
    assert len(served) + len(refused) > 300 and len(served) > 200
    for case, answer in refused:
        message = answer.json()["error"]["message"]
        assert answer.status == 400 and names_keyword(case, message), (case.name, message)
    stopped = 0
    bounded: list[bool] = []
    numbers: list[bool] = []
    for case, answers in served:
        for answer in answers:
            [choice] = answer.json()["choices"]
            has_stopped = choice["finish_reason"] == "stop"
            if has_stopped:
                stopped += 1
                check(case, choice["message"]["content"])
            if is_bounded(case.schema):
                (numbers if is_number(case) else bounded).append(has_stopped)
    record_property("schemas", len(served) + len(refused))
    record_property("served schemas", len(served))
    record_property("answers", len(served) * len(SEEDS))
    record_property("answers that ended, all of them valid", stopped)
    record_property("answers to bounded schemas", len(bounded))
    record_property("of these ended", sum(bounded))
    record_property("answers that are numbers of any length", len(numbers))
    record_property("of those ended", sum(numbers))
    record_property("refused schemas, all with a keyword named", len(refused))
    assert len(bounded) >= 60 and sum(bounded) >= 0.9 * len(bounded)


def is_number(case: Case) -> bool:
    """Whether the answer is a number. At temperature 1 the small model may never end it."""
    return isinstance(case.schema, dict) and case.schema.get("type") in ("integer", "number")


async def ask_all(
    client: Client,
) -> tuple[list[tuple[Case, list[Answer]]], list[tuple[Case, Answer]]]:
    """The answers to each schema that is served, and the refusals."""
    served: list[tuple[Case, list[Answer]]] = []
    refused: list[tuple[Case, Answer]] = []
    waiting = iter(cases())

    async def ask() -> None:
        for case in waiting:
            first = await client.ask(call(case, SEEDS[0]))
            if first.status != 200:
                refused.append((case, first))
                continue
            rest = [await client.ask(call(case, seed)) for seed in SEEDS[1:]]
            served.append((case, [first, *rest]))

    await asyncio.gather(*(ask() for _ in range(NUM_AT_ONCE)))
    return served, refused


def call(case: Case, seed: int) -> Call:
    text = "Invent a JSON value, as short as possible."
    return Call.of(
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": text}],
            "structured_outputs": {"json": case.schema},
            "max_tokens": MAX_TOKENS if is_bounded(case.schema) else MAX_UNBOUNDED_TOKENS,
            "temperature": 1,
            "seed": seed,
        },
    )
