"""Describes the machine, and measures the rate of memory copies. Prints one line of JSON.

python benchmarks/gpu/machine.py [--device cpu]

It runs in its own process, because a broken driver may hang or crash it. It needs only torch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from importlib import metadata
from typing import Any

import torch

COPY_BYTES = 2 << 30
PACKAGES = ("torch", "triton", "transformers", "numpy", "xformers", "flash-attn", "flash-attn-4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    device = torch.device(parser.parse_args().device)
    found = describe() | (describe_gpu() if device.type == "cuda" else {"gpu": None})
    found["copy_gb_per_s"] = round(measure_copies(device), 1)
    print(json.dumps(found))


def describe() -> dict[str, object]:
    """Describe the host and its packages."""
    return {
        "system": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "cuda": torch.version.cuda,
        "nvcc": _first_line("nvcc", "--version", of=-1),
    }


def describe_gpu() -> dict[str, object]:
    """Describe the first GPU. Raises RuntimeError if torch finds none."""
    of = torch.cuda.get_device_properties(0)
    return {
        "gpu": of.name,
        "capability": f"{of.major}.{of.minor}",
        "processors": of.multi_processor_count,
        "memory_gib": round(of.total_memory / 2**30, 1),
        "l2_mib": round(of.L2_cache_size / 2**20, 1),
        "driver": _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "clocks": _first_line(
            "nvidia-smi", "--query-gpu=clocks.max.sm,clocks.max.mem", "--format=csv,noheader"
        ),
    }


def measure_copies(device: torch.device) -> float:
    """The median rate of 20 copies within the device's memory, in GB/s, read and written."""
    size = COPY_BYTES if device.type == "cuda" else 64 << 20
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    times = [_time_copy(source, target) for _ in range(20)]
    return 2 * size / statistics.median(times) / 1e9


def _time_copy(source: torch.Tensor, target: torch.Tensor) -> float:
    if source.device.type == "cpu":
        start = time.perf_counter()
        target.copy_(source)
        return time.perf_counter() - start
    events = [_make_event() for _ in range(2)]
    events[0].record()
    target.copy_(source)
    events[1].record()
    events[1].synchronize()
    return float(events[0].elapsed_time(events[1])) / 1e3


def _make_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_line(*command: str, of: int = 0) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[of] if lines and done.returncode == 0 else None


if __name__ == "__main__":
    main()
