"""Where a measurement was made: what a reader needs to judge its absolute figures."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil


def describe_machine(num_threads: int) -> dict[str, str | int | float]:
    """Processor, memory, versions, and the load of the last minute at this moment."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": num_threads,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "tokenmill": _version("tokenmill"),
        "load_average": round(psutil.getloadavg()[0], 2),
    }


def _processor() -> str:
    """The processor's name; Linux tells it in a file, other systems through Python."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
