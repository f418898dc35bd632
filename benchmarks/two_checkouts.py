"""Runs one benchmark in this checkout and in an older one, in turns, and divides the figures.

For example, `git worktree add ../old v1 && make -C ../old install`, and then:
`python benchmarks/two_checkouts.py ../old "throughput.py --dtype bfloat16 --rounds 1"`.

Each checkout runs its own program with its own .venv, so both need the same figures in the file of
`--json`. Pairs alternate which checkout comes first. A ratio is this checkout's figure divided by
the other one's in the same pair; whether more is better depends on the figure.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recording import make_parser, make_table, record
from rich.console import Console
from tqdm import tqdm

HERE = Path(__file__).resolve().parents[1]
NO_FIGURES = {"benchmark", "date", "options", "machine"}


def flatten(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """All numbers of a JSON document, each with its path."""
    if isinstance(value, dict):
        for name, item in value.items():
            if path or name not in NO_FIGURES:
                yield from flatten(item, (*path, name))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield " / ".join(path), float(value)


def run_benchmark(checkout: Path, command: str) -> dict[str, float]:
    """Figures by path. Raises CalledProcessError if the program fails."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        program, *flags = shlex.split(command)
        run = [f"{checkout}/.venv/bin/python", f"{checkout}/benchmarks/{program}", *flags]
        run += ["--json", str(result)]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, cwd=checkout)
        return dict(flatten(json.loads(result.read_text(encoding="utf-8"))))


def compare(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Medians of both checkouts and of the ratio, by the figure's path."""
    checkouts = {"here": HERE, "other": args.other}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    for pair in tqdm(range(args.pairs), desc="pairs"):
        for name in sorted(checkouts, reverse=bool(pair % 2)):
            runs[name].append(run_benchmark(checkouts[name], args.command))
    both = [path for path in runs["here"][0] if path in runs["other"][0]]
    return {path: summarize_pairs(path, runs) for path in both}


def summarize_pairs(path: str, runs: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Medians of one figure, and the least and the greatest ratio of a pair."""
    pairs = [(a[path], b[path]) for a, b in zip(runs["here"], runs["other"], strict=True)]
    ratios = [a / b for a, b in pairs if b]
    return {
        "here": statistics.median(a for a, _ in pairs),
        "other": statistics.median(b for _, b in pairs),
        "ratio": round(statistics.median(ratios), 3) if ratios else float("nan"),
        "lowest": round(min(ratios, default=float("nan")), 3),
        "highest": round(max(ratios, default=float("nan")), 3),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("other", type=Path, help="the other checkout, with its .venv")
    parser.add_argument("command", help="a benchmark below benchmarks/ and its flags, in quotes")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each checkout")
    args = parser.parse_args()
    args.other = args.other.resolve()
    figures = compare(args)
    table = make_table("figure", "here", "other", "ratio", "pairs")
    for path, row in figures.items():
        medians = (f"{row['here']:.4g}", f"{row['other']:.4g}", f"{row['ratio']:.3f}")
        table.add_row(path, *medians, f"{row['lowest']:.2f} to {row['highest']:.2f}")
    Console().print(table)
    args.other = args.other.name
    record(args, "two_checkouts", {"figures": figures})


if __name__ == "__main__":
    main()
