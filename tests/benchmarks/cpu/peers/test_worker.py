"""Figures from an engine whose times are known."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import worker
from workloads import Request


class KnownEngine:
    """Takes 0.5 s for the prompts and 0.01 s for each step after that, on its own clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(worker.time, "perf_counter", lambda: self.now)

    def answer(self, requests: Sequence[Request]) -> None:
        self.now += 0.5 + 0.01 * (max(request.max_tokens for request in requests) - 1)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> KnownEngine:
    return KnownEngine(monkeypatch)


@pytest.mark.parametrize(("name", "batch"), worker.BATCHES.items())
def test_decode_leaves_the_prompts_out(engine: KnownEngine, name: str, batch: int) -> None:
    figures = worker.measure(name, engine.answer, output_len=128)

    assert figures["tokens_per_second"] == pytest.approx(batch / 0.01)
    assert figures["time_to_first_token"] == pytest.approx(0.5)


def test_prefill_counts_the_tokens_of_the_prompt(engine: KnownEngine) -> None:
    figures = worker.measure("prefill-512", engine.answer, output_len=128)

    assert figures == {"tokens_per_second": pytest.approx(512 / 0.5)}


def test_mixed_counts_all_output_tokens_from_end_to_end(engine: KnownEngine) -> None:
    begun = engine.now
    figures = worker.measure("mixed", engine.answer, output_len=128)

    assert figures["tokens_per_second"] == pytest.approx(3994 / (engine.now - begun))


def test_a_message_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    worker.say("end", "mixed", tokens_per_second=1.5)

    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "event": "end",
        "workload": "mixed",
        "figures": {"tokens_per_second": 1.5},
    }
