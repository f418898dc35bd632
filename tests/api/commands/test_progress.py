"""Progress: a block that stays as it is on a terminal, one call per stage elsewhere."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest
from rich.console import Console

from tokenmill.api.commands import progress as module
from tokenmill.api.commands.progress import ProgressDisplay, duration

Calls = list[tuple[str, float | None]]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: times[0])
    return times


@pytest.fixture
def calls() -> Calls:
    return []


@pytest.fixture
def display(now: list[float], calls: Calls) -> Iterator[ProgressDisplay]:
    with ProgressDisplay(lambda *call: calls.append(call), title="Starting it",
                         expected={"loading": 20.0}) as found:  # fmt: skip
        yield found


def shown(display: ProgressDisplay, encoding: str = "utf-8", width: int = 80) -> list[str]:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=width, force_terminal=False)
    console.print(display)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]


def test_the_block_has_a_line_per_stage_with_passed_and_expected_time(
    display: ProgressDisplay, now: list[float]
) -> None:
    display("compiling", 0.0)
    now[0] += 48
    display("compiling", 1.0)
    display("loading", 0.0)
    now[0] += 2
    display("loading", 0.25)
    title, compiling, loading = shown(display)
    assert title.split() == ["Starting", "it", "50", "s"]
    assert compiling.split() == ["✓", "compiling", "48", "s"]
    assert loading.split()[:2] == ["•", "loading"]
    assert loading.endswith("━━━╌╌╌╌╌╌╌╌╌  25% 2.0 s of about 20 s") and len(loading) <= 80
    now[0] += 30
    assert shown(display)[2].endswith("25% 32 s")  # longer than expected: no other number
    title, compiling, loading = shown(display, width=40)
    assert title.endswith(" 80 s") and compiling.endswith(" 48 s") and loading.endswith(" 25% 32 s")


def test_without_an_earlier_start_no_time_is_expected(
    display: ProgressDisplay, now: list[float]
) -> None:
    display("compiling", 0.0)
    now[0] += 3
    display("compiling", 0.25)
    assert shown(display)[1].endswith(" 25% 3.0 s")


def test_a_terminal_without_unicode_gets_ascii(display: ProgressDisplay) -> None:
    display("loading", 0.5)
    assert shown(display, "ascii")[1].split()[:3] == [">", "loading", "######------"]


def test_each_stage_is_announced_when_it_begins_and_ends(
    display: ProgressDisplay, calls: Calls, now: list[float]
) -> None:
    for fraction in (0.0, 0.5, 1.0, 1.0):
        display("loading", fraction)
        now[0] += 1
    display("compiling", 1.0)
    assert calls == [("loading", None), ("loading", 2.0), ("compiling", None), ("compiling", 0.0)]
    assert display.seconds == {"loading": 2.0, "compiling": 0.0}
    display("loading", 0.0)  # a second time, as in a comparison of policies
    assert calls[-1] == ("loading", None)
    display.stop()
    display("loading", 1.0)  # an engine that is restarted while others own the terminal
    assert calls[-1] == ("loading", None)


def test_other_output_is_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    assert not sys.stderr.isatty()
    with ProgressDisplay() as display:
        display("loading", 0.0)
        now[0] += 2
        display("loading", 1.0)
    assert capsys.readouterr() == ("", "loading ...\nloading: done in 2.0 s\n")


def test_a_stage_that_fails_is_marked(now: list[float]) -> None:
    display = ProgressDisplay(lambda *call: None)
    with pytest.raises(KeyError), display:
        display("compiling", 1.0)
        display("loading", 0.5)
        now[0] += 3
        raise KeyError
    assert [line.split() for line in shown(display)] == [
        ["✓", "compiling", "0.0", "s"], ["✗", "loading", "3.0", "s"]]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (119, "119 s"),
                          (3600, "60 min")]
)  # fmt: skip
def test_times_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text
