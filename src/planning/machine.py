"""Describes the machine of a measurement, so that a reader can judge its absolute figures."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil


def describe_machine(num_threads: int) -> dict[str, str | int | float]:
    """Processor, memory, versions, and the current load average of the last minute."""
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
    """The processor's name, from /proc/cpuinfo on Linux and from `platform` elsewhere."""
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
