"""The requests of the datasets, and when they are sent."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tokenmill.bench.arrivals import Traffic
from tokenmill.bench.prompts import Dataset
from tokenmill.bench.vocabulary import Words
from tokenmill.core.errors import ConfigError

WORDS = Words()


def test_random_prompts_have_the_wanted_lengths_and_share_a_prefix() -> None:
    dataset = Dataset(num_prompts=50, input_len=40, output_len=10, range_ratio=0.5, prefix_len=8)
    prompts = dataset.prompts(WORDS)
    assert len(prompts) == 50
    assert {20 + 8 <= prompt.num_tokens <= 60 + 8 for prompt in prompts} == {True}
    assert {5 <= prompt.max_tokens <= 15 for prompt in prompts} == {True}
    assert len({prompt.num_tokens for prompt in prompts}) > 5
    assert len({tuple(prompt.text.split()[:8]) for prompt in prompts}) == 1
    assert all(WORDS.count(prompt.text) == prompt.num_tokens for prompt in prompts)
    assert dataset.prompts(WORDS) == prompts


def test_prefixes_are_repeated() -> None:
    dataset = Dataset(
        name="prefix_repetition", num_prompts=20, num_prefixes=4, prefix_len=6, input_len=5
    )
    prefixes = [tuple(prompt.text.split()[:6]) for prompt in dataset.prompts(WORDS)]
    assert len(set(prefixes)) == 4 and len(prefixes) == 20
    with pytest.raises(ConfigError, match="only 20 prompts"):
        Dataset(name="prefix_repetition", num_prompts=20, num_prefixes=21).prompts(WORDS)


def test_sharegpt_takes_the_first_question_and_the_length_of_its_answer(tmp_path: Path) -> None:
    def chat(*words: int) -> dict[str, Any]:
        return {"conversations": [{"value": "w " * count} for count in words]}

    path = tmp_path / "chats.json"
    path.write_text(json.dumps([chat(5, 9), chat(3, 9), chat(9), chat(1200, 9), chat(8, 4)]))
    dataset = Dataset(name="sharegpt", path=path, num_prompts=2, shuffles=False)
    assert [(p.num_tokens, p.max_tokens) for p in dataset.prompts(WORDS)] == [(5, 9), (8, 4)]
    repeated = Dataset(name="sharegpt", path=path, num_prompts=7).prompts(WORDS)
    assert len(repeated) == 7


def test_a_custom_file_may_say_how_long_each_answer_is(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    lines = '{"prompt": "a b", "output_tokens": 3}', "", '{"prompt": "c", "output_tokens": 9}'
    path.write_text("\n".join(lines))
    dataset = Dataset(name="custom", path=path, num_prompts=2, output_len=-1, shuffles=False)
    assert [(p.text, p.max_tokens) for p in dataset.prompts(WORDS)] == [("a b", 3), ("c", 9)]
    with pytest.raises(ConfigError, match="needs a text `prompt`"):
        path.write_text('{"promt": "a"}\n')
        Dataset(name="custom", path=path).prompts(WORDS)


def test_a_trace_has_its_times_and_shares_what_it_shared(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [(1000, 20, [1, 2]), (1500, 24, [1, 3, 4]), (4000, 4, [])]
    path.write_text(
        "".join(
            json.dumps({"timestamp": at, "input_length": n, "output_length": 5, "hash_ids": hashes})
            + "\n"
            for at, n, hashes in rows
        )
    )
    dataset = Dataset(name="timed_trace", path=path, sec_multiplier=0.001, chunk_hash_size=10)
    first, second, third = dataset.prompts(WORDS)
    assert [one.at for one in (first, second, third)] == [0.0, 0.5, 3.0]
    assert [one.num_tokens for one in (first, second, third)] == [20, 24, 4]
    assert first.text.split()[:10] == second.text.split()[:10]
    assert first.text.split()[10:20] != second.text.split()[10:20]


def chats(path: Path, *conversations: list[tuple[str, str]]) -> Path:
    records = [{"messages": [{"role": r, "content": c} for r, c in one]} for one in conversations]
    path.write_text(json.dumps(records))
    return path


def test_each_message_of_a_user_is_a_request_after_the_one_before_it(tmp_path: Path) -> None:
    talk = [("system", "be"), ("user", "a b"), ("assistant", "c d e"), ("user", "f")]
    path = chats(tmp_path / "c.json", talk, [("user", "g"), ("assistant", "")])
    dataset = Dataset(name="multi_turn", path=path, num_prompts=5, shuffles=False)
    prompts = dataset.prompts(WORDS)
    assert [one.text for one in prompts] == ["a b", "f", "g", "a b", "f"]
    assert [one.after for one in prompts] == [None, 0, None, None, 3]
    assert [one.max_tokens for one in prompts] == [3, 128, 1, 3, 128]
    assert [len(one.messages) for one in prompts] == [1, 0, 0, 1, 0]
    path.write_text('[{"messages": [{"role": "user"}]}]')
    with pytest.raises(ConfigError, match="each conversation needs `messages`"):
        dataset.prompts(WORDS)
    with pytest.raises(ConfigError, match="no request that can be sent"):
        replace(dataset, path=chats(path, [("assistant", "a")])).prompts(WORDS)


@pytest.mark.parametrize("content", [None, "no JSON", "[]", '{"a": 1}'])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"file\.json"):
        Dataset(name="sharegpt", path=path).prompts(WORDS)


def test_requests_arrive_at_the_rate() -> None:
    for burstiness in (0.5, 1.0, 4.0, math.inf):
        times = Traffic(rate=20.0, burstiness=burstiness).times(400, seed=1)
        assert list(times) == sorted(times) and times[-1] == pytest.approx(20.0)
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert (max(gaps) - min(gaps) < 1e-9) is math.isinf(burstiness)
    assert list(Traffic().times(3, seed=0)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_a_ramp_ends_faster_than_it_begins(strategy: str) -> None:
    traffic = Traffic(ramp=strategy, ramp_start=2.0, ramp_end=50.0, burstiness=math.inf)
    times = traffic.times(100, seed=0)
    assert times[1] - times[0] == pytest.approx(1 / traffic._rate_of(1, 100))
    assert times[-1] - times[-2] == pytest.approx(1 / 50.0)
