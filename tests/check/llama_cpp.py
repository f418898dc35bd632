"""llama.cpp's sources: vocabularies with expected tokens, and chat templates of many models."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

from .parts import one_at_a_time

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "cpu"
VERSION_FILE = "benchmarks/cpu/peers/make_peers.py"
"""It names the version of the sources, relative to the repository."""


@functools.cache
def llama_cpp_source() -> Path:
    """Return the folder of the sources that `make bench-cpu` builds, downloaded if missing.

    Skips the test without a network.
    """
    sys.path.append(str(BENCHMARKS / "peers"))
    from make_peers import fetch_llama_cpp

    peers = BENCHMARKS / ".peers"
    peers.mkdir(exist_ok=True)
    try:
        with one_at_a_time():
            return fetch_llama_cpp(peers)
    except OSError as error:
        pytest.skip(f"the sources of llama.cpp cannot be downloaded: {error}")
