"""A real store for the tests: valkey-server, or redis-server, on a free port."""

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("valkey-server", "redis-server")
PATIENCE = 30.0


def find_program() -> str | None:
    """The path of a store's program, if one is installed."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class StoreProcess:
    """A store that can be stopped and started again, at the same address."""

    def __init__(self, program: str, folder: Path, *arguments: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"valkey://127.0.0.1:{self.port}/0"
        self._command = [program, "--port", str(self.port), "--bind", "127.0.0.1", *arguments]
        self._command += ["--save", "", "--appendonly", "no", "--dir", str(folder)]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, without data, and wait until it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        end = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self._process.poll() is None and time.monotonic() < end
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)

    def pause(self) -> None:
        """Let it keep its connections, but answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def running_store(program: str, folder: Path, *arguments: str) -> Iterator[StoreProcess]:
    store = StoreProcess(program, folder, *arguments)
    try:
        yield store
    finally:
        store.kill()
