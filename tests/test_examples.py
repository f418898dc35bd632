"""The examples run as their docstrings say, on the real model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .server_process import running_server

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_example(name: str, *arguments: str) -> list[str]:
    """The lines that it prints; fails if it fails."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_offline_answers_every_prompt_and_a_chat() -> None:
    lines = run_example("offline.py", "4")
    assert [line.split(" -> ")[0] for line in lines] == [
        "'The capital of France is'",
        "'Water boils at'",
        "'def fibonacci(n):'",
        "chat",
    ]
    assert "Paris" in lines[0]


def test_embed_streams_two_answers_and_breaks_off_a_third() -> None:
    lines = run_example("embed.py", "6")
    assert {line.partition(":")[0] for line in lines} == {
        "first",
        "second",
        "third",
        "still running",
    }
    assert "third: aborted" in lines
    assert lines[-1] == "still running: 0"


def test_serve_client_gets_an_answer_and_a_stream_from_a_running_server(tmp_path: Path) -> None:
    with running_server(tmp_path, "--max-num-seqs", "4") as server:
        answer, usage, *streamed = run_example("serve_client.py", f"{server.url}/v1")
    assert "Tokyo" in answer
    assert "completion_tokens" in usage
    assert "".join(streamed).strip()
