"""Shared by benchmarks: flags, summaries, tables, and the file with the results."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import torch
from rich.table import Table

from tokenmill.planning import machine

Key = TypeVar("Key")


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the flags of all benchmarks, described by the first line of `doc`."""
    parser = argparse.ArgumentParser(
        description=(doc or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random prompts")
    parser.add_argument("--json", type=Path, help="write results and machine to this file")
    return parser


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of benchmarks that compute with a model."""
    parser.add_argument("--model", help="directory or .gguf file; None: the default model")
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=["float32", "bfloat16", "auto"],
        help="precision of all contenders",
    )
    parser.add_argument("--threads", type=int, help="computing threads; None: torch's choice")


def set_threads(args: argparse.Namespace) -> None:
    """Apply --threads. Call it before a model is loaded."""
    if args.threads is not None:
        torch.set_num_threads(args.threads)


def percentile(values: Sequence[float], fraction: float) -> float:
    """The smallest value that a fraction of the values does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -int(-fraction * len(ordered) // 1) - 1)]


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum of one figure over the rounds."""
    return {
        "median": round(statistics.median(values), 4),
        "lowest": round(min(values), 4),
        "highest": round(max(values), 4),
    }


def summarize_all(
    rounds: Mapping[Key, Mapping[str, Sequence[float]]],
) -> dict[Key, dict[str, dict[str, float]]]:
    """Summarize every figure of every contender over the rounds."""
    return {
        name: {figure: summarize(values) for figure, values in figures.items()}
        for name, figures in rounds.items()
    }


def make_table(*columns: str) -> Table:
    """An empty table whose columns, except the first, hold right-justified figures."""
    table = Table(*columns, box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def describe_machine() -> dict[str, str | int | float]:
    """This machine, as a reader needs it to judge absolute figures."""
    return machine.describe_machine(torch.get_num_threads())


def record(args: argparse.Namespace, benchmark: str, result: Mapping[str, object]) -> None:
    """Write the result to the file of --json, if the flag is given."""
    if args.json is None:
        return
    options = {name: value for name, value in vars(args).items() if name not in ("json", "model")}
    content = {
        "benchmark": benchmark,
        "date": datetime.now(UTC).date().isoformat(),
        "options": options,
        "machine": describe_machine(),
        **result,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(f"written to {args.json}")
