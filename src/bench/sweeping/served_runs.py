"""Runs of a sweep that measure a server with a load generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..served import ServedCommand
from .sweep import Measurement, call

ALL_METRICS = "ttft,tpot,itl,e2el"


@dataclass(slots=True, kw_only=True)
class ServedRuns:
    """Runs that share a server as long as its options stay the same."""

    serve: Sequence[str]
    """The command that runs the server."""
    bench: Sequence[str]
    """The command that measures it: `tokenmill bench serve` or `vllm bench serve`."""
    log: Path | None
    """The file for the server's output; None: all output is shown."""
    environment: Mapping[str, str]
    """The environment of all commands, with the admin key."""
    admin_key: str = ""
    """The server's, if its command has none."""
    after: Sequence[str] = ()
    """A command after each run, in place of a reset of the server's prefix cache."""
    ready_timeout: float = 300.0
    _server: ServedCommand | None = None

    @property
    def label(self) -> str:
        return "BENCH"

    def commands(self, one: Measurement) -> list[list[str]]:
        saving = ["--percentile-metrics", ALL_METRICS, "--save-result"]
        place = ["--result-dir", str(one.path.parent), "--result-filename", one.path.name]
        return [one.server.apply(self.serve), [*one.load.apply(self.bench), *saving, *place]]

    def measure(self, one: Measurement) -> None:
        serve, bench = self.commands(one)
        server = self._ready(serve)
        log = None if self.log is None else one.log
        call(bench, log, self.environment)
        if self.after:
            call(self.after, log, self.environment)
        elif one.number >= 0:  # a warm-up is for the next run
            server.forget()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()

    def _ready(self, command: Sequence[str]) -> ServedCommand:
        if self._server is None or self._server.command != command:
            self.stop()
            self._server = ServedCommand(
                command=command,
                environment=self.environment,
                timeout=self.ready_timeout,
                log=self.log,
                admin_key=self.admin_key,
            )
        self._server.get_ready()
        return self._server
