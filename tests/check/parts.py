"""What checks need from the system's packages, installed when it is missing."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenmill" / "check"
"""Where checks keep what they install."""


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Processes of tests install one after the other: apt-get fails while another one runs."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "installing.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@functools.cache
def need(command: str, package: str) -> str:
    """Path of a command, from Debian's package of that name if it is missing.

    Skips the test, saying what to install, without apt-get or the right to use it.
    """
    path = shutil.which(command)
    if path is not None:
        return path
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        pytest.skip(
            f"{command} is missing: install {package} (apt-get was not found, or needs root)"
        )
    with one_at_a_time():
        if shutil.which(command) is None:
            _apt_get("update")
            _apt_get("install", "--yes", "--no-install-recommends", package)
    path = shutil.which(command)
    assert path is not None, f"the package {package} has no {command}"
    return path


def _apt_get(*arguments: str) -> None:
    """Its last lines are the reason when it fails."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        ["apt-get", "-qq", *arguments], capture_output=True, text=True, env=environment
    )
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).splitlines()[-3:]
        pytest.skip(f"apt-get {' '.join(arguments)} failed: {' / '.join(lines)}")
