"""The example scripts and the benchmark run as printed, with the real model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def output_of(script: str, *args: str) -> str:
    """What it prints, when nothing goes wrong."""
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_offline_example_answers_every_prompt() -> None:
    printed = output_of("examples/offline.py")
    assert "'The capital of France is' -> ' Paris" in printed
    assert "'def fibonacci(n):' -> " in printed


def test_the_embedding_example_streams_two_answers_and_breaks_off_a_third() -> None:
    printed = output_of("examples/embed.py")
    assert printed.count("first: ") == printed.count("second: ") == 32
    assert "broken off" in printed


def test_the_benchmark_measures_all_three_on_the_same_tokens() -> None:
    sizes = ("--num-prompts", "2", "--input-len", "8", "--output-len", "4", "--rounds", "1")
    printed = output_of("benchmarks/throughput.py", *sizes, "--range-ratio", "0.5")
    assert "same tokens as transformers, one by one: 2 of 2 prompts" in printed
    assert "same tokens as transformers, one batch: 2 of 2 prompts" in printed
