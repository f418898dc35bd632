"""The report that `make soak` leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .soak_report import add, is_end


def ended(name: str, outcome: Any = "passed", when: Any = "call", **cases: int) -> Any:
    return pytest.TestReport(
        nodeid=f"tests/test_one.py::{name}",
        location=("tests/test_one.py", 0, name),
        keywords={"soak": 1},
        outcome=outcome,
        longrepr=None,
        when=when,
        duration=12.3,
        user_properties=list(cases.items()),
    )


def test_each_test_replaces_its_own_last_result(tmp_path: Path) -> None:
    path = tmp_path / "soak.json"
    add(path, ended("test_b[x]", cases=50), "c0ffee")
    add(path, ended("test_a", "failed"), "c0ffee")
    add(path, ended("test_a"), "decade")
    entry = json.loads(path.read_text())["tests/test_one.py"]
    assert entry["machine"]["cores"]
    assert list(entry["tests"]) == ["test_a", "test_b[x]"]
    first, last = entry["tests"].values()
    assert (first["outcome"], first["commit"]) == ("passed", "decade")
    assert (last["cases"], last["seconds"], last["commit"]) == (50, 12, "c0ffee")


def test_a_test_ends_with_its_call_or_with_a_fixture_that_fails() -> None:
    phases = [("setup", "passed"), ("call", "passed"), ("teardown", "passed"), ("setup", "skipped")]
    assert [is_end(ended("test_a", outcome, when)) for when, outcome in phases] == [
        False,
        True,
        False,
        False,
    ]
    assert is_end(ended("test_a", "failed", "setup"))
