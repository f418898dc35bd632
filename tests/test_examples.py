"""The examples run as their docstrings say, on the real model."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenmill.assembly import AsyncEngine

from .api.serving import serve_engine

EXAMPLES = Path(__file__).parents[1] / "examples"


Run = Callable[..., list[str]]


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example with these arguments as a program, in this process, which has imported torch
    already. Returns the lines that it prints; fails if it fails."""

    def run(name: str, *arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def test_offline_answers_every_prompt_and_a_chat(run_example: Run) -> None:
    lines = run_example("offline.py", "4")
    assert [line.split(" -> ")[0] for line in lines] == [
        "'The capital of France is'",
        "'Water boils at'",
        "'def fibonacci(n):'",
        "chat",
    ]
    assert "Paris" in lines[0]


def test_embed_streams_two_answers_and_breaks_off_a_third(run_example: Run) -> None:
    lines = run_example("embed.py", "6")
    assert {line.partition(":")[0] for line in lines} == {
        "first",
        "second",
        "third",
        "still running",
    }
    assert "third: aborted" in lines
    assert lines[-1] == "still running: 0"


def test_serve_client_gets_an_answer_and_a_stream_from_a_running_server(run_example: Run) -> None:
    with serve_engine(AsyncEngine(num_gpu_blocks_override=128, disable_log_stats=True)) as server:
        answer, usage, *streamed = run_example("serve_client.py", f"{server.url}/v1")
    assert "Tokyo" in answer
    assert "completion_tokens" in usage
    assert "".join(streamed).strip()
