"""Environments of foreign clients, made in the user's cache when they are missing."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..parts import CACHE, need, one_at_a_time

PROGRAMS = Path(__file__).parent / "programs"
RUN_SECONDS = 300.0
"""A client's program takes seconds; importing its packages may take a minute on a busy machine."""


@functools.cache
def python_with(*requirements: str) -> Path:
    """The Python of a virtual environment with these packages. Skips the test without a network."""
    folder = _folder("python", sys.version, *requirements)
    python = folder / "bin" / "python"
    with one_at_a_time():
        if not (folder / "installed").exists():
            _install(sys.executable, "-m", "venv", "--clear", str(folder))
            pip = (str(python), "-m", "pip", "--disable-pip-version-check", "--quiet")
            _install(*pip, "install", *requirements)
            (folder / "installed").touch()
    return python


@functools.cache
def node_with(*packages: str) -> Path:
    """A folder whose node_modules has these packages. Skips the test without a network."""
    npm = need("npm", "npm")
    folder = _folder("node", *packages)
    with one_at_a_time():
        if not (folder / "installed").exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "package.json").write_text('{"private": true, "type": "module"}')
            _install(npm, "install", "--silent", "--no-audit", "--no-fund", *packages, cwd=folder)
            (folder / "installed").touch()
    return folder


def run_python(python: Path, program: str, *arguments: str) -> Any:
    """What a program of this folder prints, as JSON. It runs in another environment."""
    return _run([str(python), str(PROGRAMS / program), *arguments])


def run_node(folder: Path, program: str, *arguments: str) -> Any:
    """What a program prints, as JSON. Node finds packages only next to the program, so the program
    is copied to them."""
    copy = folder / program
    copy.write_text((PROGRAMS / program).read_text())
    return _run([need("node", "nodejs"), str(copy), *arguments])


def client_environment() -> dict[str, str]:
    """The environment variables of a client: no proxy, no telemetry, no real keys."""
    proxies = {"http_proxy", "https_proxy", "all_proxy"}
    kept = {name: value for name, value in os.environ.items() if name.lower() not in proxies}
    return kept | {
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_API_KEY": "none",
        "PYTHONWARNINGS": "ignore",
        "HF_HUB_OFFLINE": "1",
    }


def _run(command: list[str]) -> Any:
    done = subprocess.run(
        command, capture_output=True, text=True, env=client_environment(), timeout=RUN_SECONDS
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def _folder(kind: str, *parts: str) -> Path:
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return CACHE / f"{kind}-{digest}"


def _install(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).splitlines()[-3:]
        pytest.skip(f"{' '.join(command)} failed: {' / '.join(lines)}")
