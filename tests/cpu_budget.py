"""A test of the first tier has 5 CPU seconds, with its fixtures and the processes it waits for.

CPU seconds and not seconds, because other work on the machine must not fail a test. They still
depend on the CPU, and grow by half where processes share caches. So a test that exceeds the limit
is compared with a loop of known length that runs directly afterwards: the limit is in seconds of a
CPU on which the loop takes REFERENCE_SECONDS, and the slowest of a few loops counts. Processes with
much memory slow down more than the loop does, for which there is a TOLERANCE.

A test is not judged if a compiler ran in it that builds a file once for all tests. `make test` does
most of that before the tests.

`--cpu-times=FILE` writes what each test used, for `python -m tests.cpu_times FILE`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tokenmill.backends.machine.compiling import cache_folder

HERE = Path(__file__).parent
LIMIT = 5.0
"""Maximum CPU seconds of a test, on the CPU of the reference."""
REFERENCE_SECONDS = 0.05
"""CPU seconds of `_loop` on a core of an AMD EPYC 9004, 2.6 GHz."""
TOLERANCE = 1.25
OTHER_TIERS = ("check", "soak")
_USED = pytest.StashKey[dict[str, list[float]]]()
_BEFORE = pytest.StashKey[tuple[float, float]]()
_START = pytest.StashKey[float]()
_IS_LAST = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--cpu-times`."""
    parser.addoption("--cpu-times", type=Path, help="write the CPU seconds of each test here")


def pytest_configure(config: pytest.Config) -> None:
    """Begin the file that `pytest_runtest_logreport` appends to."""
    path = config.getoption("--cpu-times")
    if path and not hasattr(config, "workerinput"):  # else the controller writes it
        path.unlink(missing_ok=True)
        config.pluginmanager.register(_Writer(path))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Begin to measure a test. No hook wraps its phases: it would be in their tracebacks."""
    item.stash[_USED], item.stash[_START] = {}, time.time()
    item.stash[_BEFORE] = _cpu_seconds()
    item.stash[_IS_LAST] = nextitem is None or nextitem.path != item.path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Measure a phase that has ended, and fail a test that used too much, as an error of its last.

    A server that ends after the last test of a file has worked for all of them: each has a share.
    """
    report = yield
    after, used = _cpu_seconds(), item.stash[_USED]
    own, children = (b - a for a, b in zip(item.stash[_BEFORE], after, strict=True))
    item.stash[_BEFORE] = after
    is_shared = call.when == "teardown" and item.stash[_IS_LAST]
    children = children / _num_tests(item) if is_shared else children
    used[call.when] = [own, children, call.duration]
    if call.when != "teardown":
        return report
    report.user_properties.append(("cpu", used))
    seconds = sum(own + children for own, children, _ in used.values())
    if seconds > LIMIT and report.passed and _is_judged(item):
        limit = LIMIT * TOLERANCE * max(1.0, max(_loop() for _ in range(5)) / REFERENCE_SECONDS)
        if seconds > limit:
            report.outcome = "failed"
            report.longrepr = _reason(used, limit)
    return report


def _is_judged(item: pytest.Item) -> bool:
    is_here = HERE in item.path.parents  # and not a suite that a test or a developer runs
    is_nested = not item.config.pluginmanager.hasplugin("cacheprovider")  # by a test
    if not is_here or is_nested or any(map(item.get_closest_marker, OTHER_TIERS)):
        return False
    return not _was_built(item)


def _was_built(item: pytest.Item) -> bool:
    """Whether a library was built since the test began: kernels, or by `compile_once`."""
    of_pytest = item.config.rootpath / item.config.getini("cache_dir") / "d"
    files = (*cache_folder().glob("*"), *of_pytest.rglob("*"))
    times = []
    for file in files:
        with suppress(FileNotFoundError):  # another process is building
            times.append(file.stat().st_mtime)
    return max(times, default=0.0) > item.stash[_START]


def _reason(used: dict[str, list[float]], limit: float) -> str:
    own, children, _ = (sum(column) for column in zip(*used.values(), strict=True))
    return (
        f"used {own + children:.1f} CPU seconds ({own:.1f} in this process, {children:.1f} in "
        f"others, {sum(used['setup'][:2]):.1f} in fixtures), and a test of the first tier has "
        f"{LIMIT:g} ({limit:.1f} on this CPU now): make it smaller, or mark it `check` and say why "
        "(tests/cpu_budget.py)"
    )


def _num_tests(item: pytest.Item) -> int:
    """How many tests of this file were chosen; with xdist, of all processes."""
    return sum(other.path == item.path for other in item.session.items)


def _cpu_seconds() -> tuple[float, float]:
    """CPU seconds of this process, and of the processes that it has waited for."""
    times = os.times()
    return times.user + times.system, times.children_user + times.children_system


def _loop() -> float:
    """CPU seconds of a fixed piece of work."""
    start, number = time.process_time(), 0
    for i in range(1_000_000):
        number = (number * 31 + i) & 0xFFFF
    return time.process_time() - start


class _Writer:
    """Writes the file of `--cpu-times`, in the process that shows the results."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        used: Any = dict(report.user_properties).get("cpu")
        if used is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"test": report.nodeid, **used}) + "\n")
