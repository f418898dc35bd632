"""A sweep: measures a server with several sets of options under several loads.

Folders and files are those of `vllm bench sweep serve`, so that its plots read them.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError, TokenmillError
from ..served import ServedCommand
from .parameters import Parameters, pairs

SUMMARY = "summary.json"
ALL_METRICS = "ttft,tpot,itl,e2el"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One sweep, and the folder of its results."""

    folder: Path
    serve: Sequence[str]
    """The command that runs the server."""
    bench: Sequence[str]
    """The command that measures it: `tokenmill bench serve` or `vllm bench serve`."""
    after: Sequence[str] = ()
    """A command after each run, in place of a reset of the server's prefix cache."""
    servers: Sequence[Parameters] = (Parameters(),)
    loads: Sequence[Parameters] = (Parameters(),)
    links: Mapping[str, str] = field(default_factory=dict)
    num_runs: int = 3
    num_warmups: int = 0
    """Prompts of a run before the measured ones; 0: no such run."""
    continues: bool = False
    """A failed run is noted in a file, and the sweep goes on."""
    shows_output: bool = False
    ready_timeout: float = 300.0
    environment: Mapping[str, str] = field(default_factory=os.environ.copy)
    """Of the server."""
    admin_key: str = ""
    """The server's, if its command has none."""

    def plan(self) -> Iterator[Measurement]:
        """All runs, in their order."""
        for server, load in pairs(self.servers, self.loads, self.links):
            parts = [("SERVE-", server.name), ("BENCH-", load.name)]
            name = "-".join("-".join(part) for part in parts if part[1]) or "default"
            folder = self.folder / name.replace("/", "_").replace("..", "__")
            if self.num_warmups:
                fields = {**load.fields, "num_prompts": self.num_warmups}
                yield Measurement(server, Parameters(fields=fields), folder / "warmup.json", -1)
            for number in range(self.num_runs):
                yield Measurement(server, load, folder / f"run={number}.json", number)

    def run(self, say: Callable[[str], None]) -> int:
        """Measure what has no result yet, and write the summaries. Return how many runs failed.

        `say` gets a line about each run. Raises TokenmillError if a run fails, unless the sweep
        continues then.
        """
        rows: dict[Path, list[Row]] = {}
        failed, server = 0, None
        try:
            for one in self.plan():
                if one.path.exists():
                    say(f"{one.path}: found")
                else:
                    command = one.server.apply(self.serve)
                    if server is None or server.command != command:
                        if server is not None:
                            server.stop()
                        server = self._server(command)
                    say(f"{one.path}: measuring")
                    try:
                        self._measure(one, server)
                    except TokenmillError as error:
                        one.path.unlink(missing_ok=True)  # of a run in which no request succeeded
                        server.stop()
                        if not self.continues:
                            raise
                        failed += 1
                        one.note_failure(error)
                        say(f"{one.path}: {error}")
                        continue
                if one.number >= 0:
                    rows.setdefault(one.path.parent, []).append(one.read())
        finally:
            if server is not None:
                server.stop()
        for folder, own in rows.items():
            (folder / SUMMARY).write_text(json.dumps(own, indent=4) + "\n", encoding="utf-8")
        _write_csv(self.folder / "summary.csv", [row for own in rows.values() for row in own])
        return failed

    def _server(self, command: Sequence[str]) -> ServedCommand:
        return ServedCommand(
            command=command,
            environment=self.environment,
            admin_key=self.admin_key,
            timeout=self.ready_timeout,
            log=None if self.shows_output else self.folder / "server.log",
        )

    def _measure(self, one: Measurement, server: ServedCommand) -> None:
        server.get_ready()
        one.path.parent.mkdir(parents=True, exist_ok=True)
        _call(one.command(self.bench), self.shows_output)
        if not one.path.exists():
            raise TokenmillError(f"the command has not written {one.path}")
        one.path.write_text(json.dumps(one.read(), indent=4) + "\n", encoding="utf-8")
        if self.after:
            _call(self.after, self.shows_output)
        elif one.number >= 0:  # a warm-up is for the next run
            server.forget()


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run."""

    server: Parameters
    load: Parameters
    path: Path
    """The path of its result."""
    number: int
    """-1: a run before the measured ones."""

    def command(self, bench: Sequence[str]) -> list[str]:
        """The command that measures, and writes the result."""
        saving = ["--percentile-metrics", ALL_METRICS, "--save-result"]
        place = ["--result-dir", str(self.path.parent), "--result-filename", self.path.name]
        return [*self.load.apply(bench), *saving, *place]

    def read(self) -> Row:
        """The result, with the options that were set. Raises ConfigError."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ConfigError(f"cannot read {self.path}: {error}") from error
        return {**found, "run_number": self.number, **self.server.fields, **self.load.fields}

    def note_failure(self, error: Exception) -> None:
        """Write the reason of the failure into the folder of the result."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fields = {
            "run_number": self.number,
            "error_type": type(error).__name__,
            "error": str(error),
            "serve_overrides": dict(self.server.fields),
            "bench_overrides": dict(self.load.fields),
        }
        path = self.path.with_name(f"{self.path.stem}.failure.json")
        path.write_text(json.dumps(fields, indent=4) + "\n", encoding="utf-8")


def _call(command: Sequence[str], shows_output: bool) -> None:
    try:
        done = subprocess.run(
            command, stdout=None if shows_output else subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise TokenmillError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise TokenmillError(f"{' '.join(command[:3])} failed with status {done.returncode}")


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        names = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(file, list(names))
        writer.writeheader()
        writer.writerows(rows)
