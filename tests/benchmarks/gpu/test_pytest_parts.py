"""Tests that go on in another process when the device was lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from parts import Ended
from pytest_parts import DEVICE_FAILED, MOST_RESTARTS, Check, read_lines

LOST = Ended(name="torch attention", status="failed", exit_status=3, seconds=1.0, tail="")


def make_check(folder: Path) -> Check:
    results = folder / "results.jsonl"
    return Check(backend="torch", kind="attention", device="cuda", select="", results=results)


def write(check: Check, *tests: dict[str, object]) -> None:
    text = "".join(json.dumps(test) + "\n" for test in tests)
    check.results.write_text(text, encoding="utf-8")


def test_the_status_is_that_of_the_tests() -> None:
    from tests.gpu import conftest

    assert conftest.DEVICE_FAILED == DEVICE_FAILED


def test_the_rest_is_what_has_no_result_yet(tmp_path: Path) -> None:
    check = make_check(tmp_path)
    assert "--deselect" not in check.part({}).command
    write(check, {"test": "test_x[a]"}, {"test": "test_x[b]", "lost_the_device": True})
    rest = check.rest({}, LOST)
    assert rest is not None
    names = [
        word
        for before, word in zip(rest.command, rest.command[1:], strict=False)
        if before == "--deselect"
    ]
    assert names == [f"tests/gpu/test_attention.py::test_x[{n}]" for n in "ab"]


def test_only_a_lost_device_is_a_reason_to_go_on_and_not_for_ever(tmp_path: Path) -> None:
    check = make_check(tmp_path)
    for status in (0, 1, -11):
        assert check.rest({}, replace(LOST, exit_status=status)) is None
    write(check, *[{"test": str(n), "lost_the_device": True} for n in range(MOST_RESTARTS + 1)])
    assert check.rest({}, LOST) is None


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text('{"a": 1}\n{"a":', encoding="utf-8")
    assert read_lines(path) == [{"a": 1}]
    assert read_lines(tmp_path / "none") == []
