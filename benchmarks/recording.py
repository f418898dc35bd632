"""How benchmarks share their flags, say where they ran, and write down what they measured."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil
import torch

from tokenmill import __version__


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser that shows the benchmark's own text, with the flags that all of them have."""
    parser = argparse.ArgumentParser(
        description=(doc or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random prompts")
    parser.add_argument("--json", type=Path, help="write result and machine to this file")
    return parser


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of benchmarks that compute."""
    parser.add_argument("--model", help="directory or .gguf file; None: the embedded model")
    parser.add_argument(
        "--dtype", default="float32", choices=["float32", "bfloat16"], help="of all contenders"
    )
    parser.add_argument("--threads", type=int, help="that compute; None: torch's choice")


def set_threads(args: argparse.Namespace) -> None:
    """Obey --threads; before any model is loaded."""
    if args.threads is not None:
        torch.set_num_threads(args.threads)


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that `part` (0 to 1) of all values do not exceed: nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -int(-part * len(ordered) // 1) - 1)]


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Median and extremes of one figure over the rounds."""
    return {
        "median": round(statistics.median(values), 4),
        "lowest": round(min(values), 4),
        "highest": round(max(values), 4),
    }


def describe_machine() -> dict[str, object]:
    """What a reader must know to judge absolute figures; load_average tells who else was there."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tokenmill": __version__,
        "load_average": [round(value, 2) for value in psutil.getloadavg()],
    }


def record(args: argparse.Namespace, benchmark: str, result: Mapping[str, object]) -> None:
    """Write the result to the file of --json, if one was named."""
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


def _processor() -> str:
    """The processor's name; Linux tells it in a file, other systems through Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
