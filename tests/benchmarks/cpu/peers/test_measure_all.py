"""The runs behind the tables of docs/performance.md, and how they become result files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from compare import parse_args
from measure_all import collect, runs, sets_of_this_cpu

RESULTS = Path(__file__).parents[4] / "benchmarks/results"


def test_compare_accepts_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for run in runs(["avx512bf16", "avx2"]):
        monkeypatch.setattr(sys, "argv", ["compare.py", *run.arguments])
        assert parse_args().attempts == 2


def test_only_lower_sets_are_named_to_the_engines() -> None:
    by_set = {run.section: run.is_native for run in runs(["avx512bf16", "avx2"])}
    assert by_set == {None: True, "avx512bf16": True, "avx2": False}
    assert sets_of_this_cpu()


def test_runs_become_the_files_that_are_committed(tmp_path: Path) -> None:
    wanted = list(runs(["avx512bf16", "avx2"]))
    for run in wanted:
        (tmp_path / f"{run.name}.json").write_text(json.dumps({"of": run.name, "command": "x"}))
    found = collect(wanted, tmp_path)
    assert found["cpu_peers"]["of"] == "cpu_peers"
    assert found["cpu_instruction_sets"]["avx2"]["of"] == "cpu_instruction_sets-avx2"
    for name, content in found.items():
        committed = json.loads((RESULTS / f"{name}.json").read_text())
        assert name == "cpu_peers" or set(content) <= set(committed)
