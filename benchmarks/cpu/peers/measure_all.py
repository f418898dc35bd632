"""Measures everything that docs/performance.md compares with other engines, on one day.

python benchmarks/cpu/peers/measure_all.py

It needs a quiet machine, the engines of `make bench-cpu-peers`, llama.cpp for each instruction set
(`make bench-cpu-peers ARGS="--instruction-set avx2"`) and the files of make_shapes.py. It takes two
hours. The tables lack the engines that are not installed. When all runs have ended, the files in
benchmarks/results are replaced, and the tables, the plot and its caption are written again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines import HERE
from instruction_sets import LLAMA_CPP_OPTIONS, VARIABLE
from make_shapes import KINDS

ROOT = HERE.parents[2]
RESULTS = ROOT / "benchmarks/results"
TWO = ("--engines", "tokenmill", "llama.cpp")
SHAPE = "0.6B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of compare.py."""

    file: str
    """The result file that it belongs to, without .json."""
    section: str | None = None
    """Its instruction set, in a file with several runs."""
    is_native: bool = True
    """Whether the set is the one that this CPU chooses by itself."""
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.file if self.section is None else f"{self.file}-{self.section}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="try all runs; replaces no result")
    args = parser.parse_args()
    folder = HERE.parent / ".peers" / "measured"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wanted = list(runs(sets_of_this_cpu()))
    for run in wanted:
        measure(run, folder, ["--quick"] if args.quick else [])
    if args.quick:
        print(f"no result was replaced; the runs are in {folder}")
        return
    for name, content in collect(wanted, folder).items():
        (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    subprocess.run([sys.executable, ROOT / "scripts/docs/write_performance.py"], check=True)


def sets_of_this_cpu() -> list[str]:
    """The instruction sets that this CPU has and llama.cpp can be built for, best first."""
    from tokenmill.backends.cpu.native.instruction_sets import supported_sets

    best, *lower = supported_sets()
    return [best, *(name for name in lower if name in LLAMA_CPP_OPTIONS and name != "portable")]


def runs(sets: Sequence[str]) -> Iterable[Run]:
    """All runs. The first of the sets is the one that this CPU chooses."""
    yield Run(file="cpu_peers", arguments=("--rounds", "3", "--attempts", "2"))
    workloads = ("--workloads", "single", "batch-8", "batch-32", "prefill-512")
    shapes = tuple(f"{SHAPE}-{kind}" for kind in (*KINDS, "bf16"))
    for name in sets:
        yield Run(
            file="cpu_instruction_sets",
            section=name,
            is_native=name == sets[0],
            arguments=(*TWO, *workloads, "--rounds", "3", "--attempts", "2", "--output-len", "64"),
        )
    for name in sets:
        yield Run(
            file="cpu_quantized_shapes",
            section=name,
            is_native=name == sets[0],
            arguments=(
                *TWO, "--models", *shapes, "--workloads", "single", "batch-8", "prefill-512",
                "--rounds", "1", "--attempts", "2", "--output-len", "32",
            ),
        )  # fmt: skip


def measure(run: Run, folder: Path, further: Sequence[str]) -> None:
    """Run compare.py, which prints its progress. Raises CalledProcessError if it fails."""
    print(f"== {run.name}", flush=True)
    chosen = {} if run.is_native else {VARIABLE: str(run.section)}
    target = folder / f"{run.name}.json"
    subprocess.run(
        [sys.executable, HERE / "compare.py", *run.arguments, *further, "--json", target],
        check=True,
        env={key: value for key, value in os.environ.items() if key != VARIABLE} | chosen,
    )


def collect(wanted: Iterable[Run], folder: Path) -> dict[str, Any]:
    """The content of each result file, with its sections."""
    found: dict[str, Any] = {}
    for run in wanted:
        content = json.loads((folder / f"{run.name}.json").read_text(encoding="utf-8"))
        # The command is recorded without the folder, which is on this machine only.
        content["command"] = f"python benchmarks/cpu/peers/measure_all.py: {run.name}"
        if run.section is None:
            found[run.file] = content
        else:
            found.setdefault(run.file, {})[run.section] = content
    return found


if __name__ == "__main__":
    main()
