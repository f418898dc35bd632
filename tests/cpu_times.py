"""Tabulates where the CPU time of tests goes: `python -m tests.cpu_times FILE > TABLE`.

`make test ARGS="--cpu-times=FILE"` writes FILE, and so does `make check` with the same flag. The
three tables have the folders, the modules with the most CPU time, and the tests with the most CPU
time. `make test` builds kernels before the tests. That time is not included.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.recording import describe_machine

NUM_ROWS = 30
"""Number of rows in the tables of modules and of tests."""
HEADS = ("CPU s", "fixtures", "tests", "processes", "wall s")
"""In the process of the tests: fixtures and the tests themselves. Then other processes, of both.
Last, the seconds that passed: on a quiet machine, those beyond the CPU seconds were waited."""

Costs = Sequence[float]


def main(path: Path) -> None:
    """Print both tables as Markdown."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    tests = {row["test"]: costs_of(row) for row in rows}
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine().items())
    print("# Where the CPU seconds of tests go\n")
    print(f"{len(tests)} tests. {machine}.\n")
    print_table("folder", with_total(sums_by(folder_of, tests)))
    print()
    print_table("module", sums_by(module_of, tests)[:NUM_ROWS])
    print()
    print_table("test", Counter(tests).most_common(NUM_ROWS))


def costs_of(row: dict[str, Any]) -> Costs:
    """All, fixtures, test and processes in CPU seconds, and the seconds that passed."""
    own = {phase: used[0] for phase, used in row.items() if phase != "test"}
    phases = [used for phase, used in row.items() if phase != "test"]
    _, processes, wall = (sum(column) for column in zip(*phases, strict=True))
    test = own.pop("call", 0)
    fixtures = sum(own.values())
    return (fixtures + test + processes, fixtures, test, processes, wall)


def module_of(test: str) -> str:
    return test.partition("::")[0]


def folder_of(test: str) -> str:
    """The folder below tests/, at most two deep."""
    return "/".join(test.partition("::")[0].split("/")[:-1][:3])


def sums_by(
    group_of: Callable[[str], str], tests: Mapping[str, Costs]
) -> list[tuple[str, list[float]]]:
    """The sums of groups of tests; the group with the most CPU time first."""
    sums: dict[str, list[float]] = {}
    for name, costs in tests.items():
        found = sums.setdefault(group_of(name), [0] * len(costs))
        sums[group_of(name)] = [a + b for a, b in zip(found, costs, strict=True)]
    return sorted(sums.items(), key=lambda one: -one[1][0])


def with_total(rows: list[tuple[str, list[float]]]) -> list[tuple[str, list[float]]]:
    columns = zip(*(costs for _, costs in rows), strict=True)
    return [*rows, ("all", [sum(column) for column in columns])]


def print_table(head: str, rows: Iterable[tuple[str, Costs]]) -> None:
    """A row for each name, with its costs."""
    print(f"| {' | '.join((*HEADS, head))} |\n|{'--:|' * len(HEADS)}---|")
    for name, costs in rows:
        print(f"| {' | '.join(f'{one:.1f}' for one in costs)} | `{name}` |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
