"""A server that runs while it is measured: a command in a process group of its own."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from ..core.errors import ConfigError, TokenmillError
from .client import NO_HEADERS

_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.2


@dataclass(slots=True, kw_only=True)
class ServedCommand:
    """Starts when it is needed."""

    command: Sequence[str]
    """Its options --host and --port, or their defaults, are the server's address."""
    environment: Mapping[str, str]
    timeout: float
    """Seconds that it has for its start."""
    log: Path | None
    """The file to which its output is added; None: it is shown."""
    admin_key: str = ""
    """The key for `forget`, unless the command has --admin-key."""
    _process: subprocess.Popen[bytes] | None = None
    _on_sigterm: Any = signal.SIG_DFL
    """The handler of SIGTERM before the start. While the server runs, SIGTERM raises SystemExit
    here: otherwise the server would go on alone."""

    def get_ready(self) -> None:
        """Start the server, unless it runs. Raises TokenmillError if it does not get ready."""
        if self._process is not None:
            return
        if self._status("GET", "/health") is not None:
            host, port = self._address
            raise ConfigError(f"another server listens on {host}:{port}: name another --port")
        if threading.current_thread() is threading.main_thread():
            self._on_sigterm = signal.signal(signal.SIGTERM, _end)
        self._process = process = self._start()
        hint = "" if self.log is None else f": see {self.log}"
        end = time.monotonic() + self.timeout
        while self._status("GET", "/health") != 200:
            if (status := process.poll()) is not None:
                raise TokenmillError(f"the server ended with status {status}{hint}")
            if time.monotonic() > end:
                raise TokenmillError(
                    f"the server is not ready after {self.timeout:g} seconds{hint}"
                )
            time.sleep(_POLL_SECONDS)

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            if self.log is None:
                return self._popen(None)
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                return self._popen(log)
        except OSError as error:
            raise ConfigError(f"{self.command[0]} cannot be run: {error}") from error

    def _popen(self, output: IO[bytes] | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
        )

    @property
    def url(self) -> str:
        host, port = self._address
        return f"http://{host}:{port}"

    def forget(self) -> None:
        """Empty the prefix cache. A server that cannot do it starts again before the next run."""
        key = self._option("--admin-key", self.admin_key)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        if self._status("POST", "/reset_prefix_cache", headers) != 200:
            self.stop()

    def stop(self) -> None:
        """End the server and its processes. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(_STOP_SECONDS)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        process.wait()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)

    @property
    def _address(self) -> tuple[str, int]:
        """Host and port, from the command's options."""
        host = self._option("--host", "127.0.0.1")
        port = self._option("--port", "8000")
        try:
            return host, int(port)
        except ValueError:
            raise ConfigError(f"--port of the server must be a number, got {port!r}") from None

    def _option(self, name: str, default: str) -> str:
        for word, following in zip(self.command, [*self.command[1:], ""], strict=True):
            if word == name:
                return following
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return default

    def _status(
        self, method: str, path: str, headers: Mapping[str, str] = NO_HEADERS
    ) -> int | None:
        """The status that the server answers with; None: it does not listen."""
        connection = http.client.HTTPConnection(*self._address, timeout=5.0)
        try:
            connection.request(method, path, headers=headers)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


def _end(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)
