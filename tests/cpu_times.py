"""Tabulates where the first tier's CPU time goes: `python -m tests.cpu_times FILE > TABLE`.

FILE is what `make test ARGS="--cpu-times=FILE"` writes. One table by folder, one of the dearest
tests. Kernels are built before the tests, and are not in it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.recording import describe_machine

NUM_TESTS = 30
"""Rows of the second table."""
HEADS = ("CPU s", "fixtures", "tests", "processes", "wall s")
"""In the process of the tests: fixtures and the tests themselves. Then other processes, of both.
Last, the seconds that passed: on a quiet machine, those beyond the CPU seconds were waited."""

Costs = Sequence[float]


def main(path: Path) -> None:
    """Print both tables as Markdown."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    tests = {row["test"]: costs_of(row) for row in rows}
    machine = ", ".join(f"{name} {value}" for name, value in describe_machine().items())
    print("# Where the CPU seconds of `make test` go\n")
    print(f"{len(tests)} tests. {machine}.\n")
    print_table("folder", by_folder(tests))
    print()
    print_table("test", Counter(tests).most_common(NUM_TESTS))


def costs_of(row: dict[str, Any]) -> Costs:
    """All, fixtures, test and processes in CPU seconds, and the seconds that passed."""
    own = {phase: used[0] for phase, used in row.items() if phase != "test"}
    phases = [used for phase, used in row.items() if phase != "test"]
    _, processes, wall = (sum(column) for column in zip(*phases, strict=True))
    test = own.pop("call", 0)
    fixtures = sum(own.values())
    return (fixtures + test + processes, fixtures, test, processes, wall)


def by_folder(tests: dict[str, Costs]) -> list[tuple[str, Costs]]:
    """The sums of folders below tests/, at most two deep; the dearest first."""
    sums: dict[str, list[float]] = {}
    for name, costs in tests.items():
        folder = "/".join(name.partition("::")[0].split("/")[:-1][:3])
        found = sums.setdefault(folder, [0] * len(costs))
        sums[folder] = [a + b for a, b in zip(found, costs, strict=True)]
    total = [sum(column) for column in zip(*sums.values(), strict=True)]
    return [*sorted(sums.items(), key=lambda one: -one[1][0]), ("all", total)]


def print_table(head: str, rows: Iterable[tuple[str, Costs]]) -> None:
    """A row for each name, with its costs."""
    print(f"| {' | '.join((*HEADS, head))} |\n|{'--:|' * len(HEADS)}---|")
    for name, costs in rows:
        print(f"| {' | '.join(f'{one:.1f}' for one in costs)} | `{name}` |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
