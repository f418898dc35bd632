"""`tokenmill simulate seeds`: lives of the engine from the command line."""

from __future__ import annotations

import json

import pytest

from tokenmill.api.cli import main


def test_a_few_seeds_run_clean_and_say_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "seeds", "--seed", "3", "--count", "4"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("4 seeds passed in ")
    assert "preemptions" in printed.out and "seeds" in printed.err


def test_json_has_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "seeds", "--seed", "3", "--count", "2", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["num_seeds"] == 2 and counts["num_tokens"] > 0


def test_a_trace_tells_one_life_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "seeds", "--seed", "3", "--trace"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "LifeSettings(" in lines[0] and lines[-1].startswith("1 seeds passed")
    assert any(" plan StepPlan(step_id=1," in line for line in lines)


def test_no_seeds_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "seeds", "--count", "0"]) == 1
    assert capsys.readouterr().err == "error: --count must be at least 1, got 0\n"
