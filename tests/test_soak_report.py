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


def test_tests_of_a_commit_add_up_and_a_new_commit_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "soak.json"
    add(path, ended("test_b[x]", cases=50), "c0ffee")
    add(path, ended("test_a", "failed"), "c0ffee")
    entry = json.loads(path.read_text())["tests/test_one.py"]
    assert entry["commit"] == "c0ffee" and entry["machine"]["cores"]
    assert entry["tests"] == {
        "test_a": {"outcome": "failed", "seconds": 12},
        "test_b[x]": {"outcome": "passed", "seconds": 12, "cases": 50},
    }
    add(path, ended("test_a"), "decade")
    entry = json.loads(path.read_text())["tests/test_one.py"]
    assert entry["commit"] == "decade" and list(entry["tests"]) == ["test_a"]


def test_a_test_ends_with_its_call_or_with_a_fixture_that_fails() -> None:
    phases = [("setup", "passed"), ("call", "passed"), ("teardown", "passed"), ("setup", "skipped")]
    assert [is_end(ended("test_a", outcome, when)) for when, outcome in phases] == [
        False,
        True,
        False,
        False,
    ]
    assert is_end(ended("test_a", "failed", "setup"))
