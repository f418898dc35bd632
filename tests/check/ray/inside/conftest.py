"""Fixtures of the tests that use a Ray cluster of two machines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.backends.tiny_checkpoints import TARGET, write_model

UNEVEN = replace(TARGET, num_heads=6, num_kv_heads=3, head_size=16, max_position_embeddings=4096)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose heads two ranks divide unevenly."""
    return write_model(tmp_path_factory.mktemp("model") / "m", UNEVEN, 1)


@pytest.fixture
def spread(tmp_path: Path) -> Path:
    """A plugins.toml that places each rank on another machine."""
    path = tmp_path / "plugins.toml"
    path.write_text(
        'api = 1\n[distributed_executor_backend]\nuse = "ray"\nplacement = "STRICT_SPREAD"\n'
    )
    return path


@pytest.fixture(scope="session", autouse=True)
def stranger(model: Path) -> Iterator[subprocess.Popen[str]]:
    """A program with a wrong token. Ray tries for 20 seconds, so it starts before the tests."""
    flags = ["--model", str(model), "--device", "cpu", "--distributed-executor-backend", "ray"]
    with subprocess.Popen(
        [sys.executable, "-m", "tokenmill", "generate", *flags, "a prompt"],
        env=os.environ | {"RAY_AUTH_TOKEN": "0" * 64},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()
