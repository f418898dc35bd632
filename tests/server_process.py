"""A real server for tests: `tokenmill serve` as a subprocess on a free port."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

SERVE = ("tokenmill", "serve", "--port", "0")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server process, its address, and the file that it writes to."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def load(self) -> dict[str, float]:
        """What GET /load answers."""
        found: dict[str, float] = httpx.get(f"{self.url}/load").json()
        return found

    def wait_until_empty(self, seconds: float = 20.0) -> dict[str, float]:
        """The load once no request is left; fails after `seconds`."""
        for _ in range(int(seconds / 0.05)):
            load = self.load()
            if not any(load[k] for k in ("num_running", "num_waiting", "kv_cache_usage")):
                return load
            time.sleep(0.05)
        raise AssertionError(f"still busy: {self.load()}")


@contextlib.contextmanager
def running_server(
    folder: Path, *flags: str, packages: Path | None = None, program: Sequence[str] = SERVE
) -> Iterator[RunningServer]:
    """Start a server with the default model, or another program that serves; ends it at the end.

    `packages` is a folder with more installed distributions.
    """
    log = folder / "server.log"
    command = [sys.executable, "-m", *program, *flags]
    with log.open("wb") as out:
        environment = os.environ | ({"PYTHONPATH": str(packages)} if packages else {})
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
    try:
        yield RunningServer(process, _wait_for_url(process, log), log)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def _wait_for_url(process: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(1200):
        found = re.search(r'"listening", "address": "(http:[^"]+)"', log.read_text())
        if found:
            return found.group(1)
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(f"no server after two minutes: {log.read_text()}")
