"""Measures starts of an engine, each in a fresh process, with empty caches or with full ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ..backends.weights.hub.name import cache_folder as hub_folder
from ..core.config import EngineConfig
from ..core.errors import ConfigError
from .in_process import PERCENTILES
from .one_start import Order, Start


def cold_start(config: EngineConfig) -> Start:
    """Start once with empty caches. Models of the Hugging Face cache stay, and files that the
    operating system holds in memory. Raises ConfigError if the start fails."""
    with tempfile.TemporaryDirectory(prefix="tokenmill-cold-") as folder:
        names = ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
        own = {name: os.path.join(folder, name) for name in names}
        return warm_start(config, {**own, "HF_HUB_CACHE": str(hub_folder())})


def warm_start(config: EngineConfig, environment: Mapping[str, str] | None = None) -> Start:
    """Start once, with more variables of the environment. Raises ConfigError if it fails."""
    order = Order(config=config, begun=time.monotonic())
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tokenmill.bench.one_start"],
        input=msgspec.json.encode(order),
        capture_output=True,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"]
        raise ConfigError(f"the start failed: {lines[-1].removeprefix('error: ')}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Start)


def start_fields(kind: str, starts: Sequence[Start]) -> dict[str, Any]:
    """The fields of vLLM's file for starts of a kind ("cold" or "warm"), and the phases."""
    figures = {
        f"{kind}_startup": [start.total for start in starts],
        f"{kind}_compilation": [start.compilation for start in starts],
    }
    found: dict[str, Any] = {}
    for name, seconds in figures.items():
        percentiles = np.percentile(seconds, PERCENTILES)
        found[f"avg_{name}_time"] = float(np.mean(seconds))
        found[f"{name}_times"] = seconds
        found[f"{name}_percentiles"] = {
            str(p): float(value) for p, value in zip(PERCENTILES, percentiles, strict=True)
        }
    names = dict.fromkeys(name for start in starts for name in start.phases)
    phases = {name: [start.phases.get(name, 0.0) for start in starts] for name in names}
    return found | {f"{kind}_phases": phases}
