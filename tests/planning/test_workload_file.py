"""Recorded workloads: both forms, all names, and errors that say where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.planning.workload_file import RecordedWorkload, read_workload


def read(tmp_path: Path, text: str, seed: int = 0) -> RecordedWorkload:
    path = tmp_path / "load.json"
    path.write_text(text, encoding="utf-8")
    return read_workload(path, seed)


def test_a_document_with_a_list_of_requests_is_read_and_other_fields_are_named(
    tmp_path: Path,
) -> None:
    document = {
        "seed": 1,
        "requests": [
            {
                "id": 0,
                "prompt_token_ids": [5, 6, 7],
                "prompt": "x",
                "prompt_len": 3,
                "output_len": 9,
            }
        ],
        "uniform": [],
    }
    found = read(tmp_path, json.dumps(document, indent=1))
    [request] = found.requests
    assert request.prompt_token_ids == (5, 6, 7) and request.max_tokens == 9
    assert not found.has_arrivals and found.ignored_fields == ("id", "prompt")


def test_json_lines_and_a_plain_list_are_read_alike(tmp_path: Path) -> None:
    requests = [
        {"num_prompt_tokens": 4, "max_tokens": 2, "at": 3.5, "priority": -1},
        {"num_prompt_tokens": 6, "num_output_tokens": 1, "at": 1.5, "cache_salt": "me"},
    ]
    lines = "\n".join(map(json.dumps, requests)) + "\n\n"
    found = read(tmp_path, lines)
    assert found == read(tmp_path, json.dumps(requests))
    first, second = found.requests
    assert found.has_arrivals
    assert (first.at, len(first.prompt_token_ids), first.cache_salt) == (0.0, 6, "me")
    assert (second.at, len(second.prompt_token_ids), second.priority) == (2.0, 4, -1)


def test_prompts_of_one_prefix_begin_alike_and_only_so_far(tmp_path: Path) -> None:
    base = {"num_prompt_tokens": 50, "max_tokens": 1}
    requests = [
        {**base, "prefix": "a", "num_prefix_tokens": 20},
        {**base, "prefix": "a", "num_prefix_tokens": 30},
        {**base, "prefix": "b", "num_prefix_tokens": 20},
        base,
    ]
    prompts = [r.prompt_token_ids for r in read(tmp_path, json.dumps(requests)).requests]
    assert prompts[0][:20] == prompts[1][:20] and prompts[0][20:30] != prompts[1][20:30]
    assert len({prompt[:20] for prompt in prompts}) == 3


def test_made_up_prompts_depend_on_the_seed_alone(tmp_path: Path) -> None:
    text = '[{"num_prompt_tokens": 50, "max_tokens": 1}]'
    assert read(tmp_path, text) == read(tmp_path, text)
    assert read(tmp_path, text) != read(tmp_path, text, seed=1)


GOOD = '{"num_prompt_tokens": 4, "max_tokens": 2}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD + '{"num_prompt_tokens": 4}', ["line 2", "max_tokens"]),
        (GOOD + '{"num_prompt_tokens": "many", "max_tokens": 1}', ["line 2", "num_prompt_tokens"]),
        (GOOD + '{"num_prompt_tokens": 0, "max_tokens": 1}', ["line 2", "num_prompt_tokens", "1"]),
        (GOOD + '{"max_tokens": 1}', ["line 2", "prompt_token_ids", "num_prompt_tokens"]),
        (GOOD + '\n{"num_prompt_tokens": 4, "max_tokens": 1', ["line 3", "column"]),
        (GOOD + "[1]", ["line 2", "object"]),
        (GOOD + '{"num_prompt_tokens": 4, "max_tokens": 1, "at": 3}', ["line 2", "`at`"]),
        (GOOD + '{"num_prompt_tokens": 4, "max_tokens": 1, "at": -3}', ["line 2", "`at`"]),
        (GOOD + '{"num_prompt_tokens": 4, "max_tokens": 1, "priority": 0.5}', ["priority"]),
        (GOOD + '{"prompt_token_ids": [], "max_tokens": 1}', ["line 2", "empty"]),
        (
            GOOD + '{"prompt_token_ids": [1, -1], "max_tokens": 1}',
            ["line 2", "prompt_token_ids[1]"],
        ),
        (
            GOOD + '{"prompt_token_ids": [1], "prompt_len": 2, "max_tokens": 1}',
            ["line 2", "num_prompt_tokens is 2", "has 1"],
        ),
        (
            GOOD + '{"num_prompt_tokens": 1, "output_len": 2, "max_tokens": 1}',
            ["line 2", "two values for max_tokens"],
        ),
        (GOOD + '{"num_prompt_tokens": 1, "max_tokens": 1, "prefix": "a"}', ["num_prefix_tokens"]),
        (
            GOOD
            + '{"num_prompt_tokens": 1, "max_tokens": 1, "prefix": "a", "num_prefix_tokens": 2}',
            ["num_prefix_tokens is 2, but num_prompt_tokens is 1"],
        ),
        (GOOD + '{"prompt_token_ids": [1], "max_tokens": 1, "prefix": "a"}', ["prefix"]),
        (
            '{"requests": [{"num_prompt_tokens": 1, "max_tokens": true}]}',
            ["requests[0]", "max_tok"],
        ),
        ('{"requests": 3}', ["requests"]),
        ('{\n"requests": [\n}', ["line 3"]),
        ("[]", ["no requests"]),
        ("", ["line 1"]),
    ],
)
def test_an_error_names_file_place_and_field(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    for word in ("load.json", *words):
        assert word in str(raised.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json"):
        read_workload(tmp_path / "none.json")
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_workload(tmp_path / "latin")
