"""A sweep: measures with several sets of options, and keeps the results in a folder.

Folders and files are those of `vllm bench sweep`, so that its plots read them.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ...core.errors import ConfigError, TokenmillError
from .parameters import Parameters, pairs

SUMMARY = "summary.json"
NUM_LAST_LINES, LAST_BYTES = 10, 4096
"""The end of the output of a failed command that its error shows."""
Row = dict[str, Any]


class Method(Protocol):
    """The way in which each run is measured."""

    @property
    def label(self) -> str:
        """The word before a load's options in the name of a folder."""
        ...

    def commands(self, one: Measurement) -> list[list[str]]:
        """The commands of a run; the last one writes `one.path`."""
        ...

    def measure(self, one: Measurement) -> None:
        """Run the commands. Raises TokenmillError if one fails."""
        ...

    def stop(self) -> None:
        """End what runs between two measurements. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One sweep, and the folder of its results."""

    folder: Path
    method: Method
    servers: Sequence[Parameters] = (Parameters(),)
    loads: Sequence[Parameters] = (Parameters(),)
    links: Mapping[str, str] = field(default_factory=dict)
    num_runs: int = 3
    num_warmups: int = 0
    """Prompts of a run before the measured ones; 0: no such run."""
    continues: bool = False
    """A failed run is noted in a file, and the sweep goes on."""

    def plan(self) -> Iterator[Measurement]:
        for server, load in pairs(self.servers, self.loads, self.links):
            parts = [("SERVE-", server.name), (f"{self.method.label}-", load.name)]
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
        failed = 0
        try:
            for one in self.plan():
                if one.path.exists():
                    say(f"{one.path}: found")
                else:
                    say(f"{one.path}: measuring")
                    try:
                        self._measure(one)
                    except TokenmillError as error:
                        one.path.unlink(missing_ok=True)  # of a run in which no request succeeded
                        self.method.stop()
                        if not self.continues:
                            raise
                        failed += 1
                        one.note_failure(error)
                        say(f"{one.path}: {error}")
                        continue
                if one.number >= 0:
                    rows.setdefault(one.path.parent, []).append(one.read())
        finally:
            self.method.stop()
        for folder, own in rows.items():
            (folder / SUMMARY).write_text(json.dumps(own, indent=4) + "\n", encoding="utf-8")
        _write_csv(self.folder / "summary.csv", [row for own in rows.values() for row in own])
        return failed

    def _measure(self, one: Measurement) -> None:
        one.path.parent.mkdir(parents=True, exist_ok=True)
        self.method.measure(one)
        if not one.path.exists():
            raise TokenmillError(f"the command has not written {one.path}")
        one.path.write_text(json.dumps(one.read(), indent=4) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Measurement:
    server: Parameters
    load: Parameters
    path: Path
    """The path of its result."""
    number: int
    """-1: a run before the measured ones."""

    def read(self) -> Row:
        """The result, with the options that were set. Raises ConfigError."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ConfigError(f"cannot read {self.path}: {error}") from error
        return {**found, "run_number": self.number, **self.server.fields, **self.load.fields}

    @property
    def log(self) -> Path:
        """The path of the output of its commands, which is kept if one fails."""
        return self.path.with_suffix(".log")

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


def call(
    command: Sequence[str], log: Path | None, environment: Mapping[str, str] | None = None
) -> None:
    """Run a command to its end. `log`: the file for its output, which is kept if the command fails;
    None: the output is shown. `environment`: None is that of this process.

    Raises TokenmillError with the last lines if it fails.
    """
    try:
        if log is None:
            status = subprocess.run(command, env=environment, check=False).returncode
        else:
            with log.open("wb") as file:
                status = subprocess.run(
                    command, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False
                ).returncode
    except OSError as error:
        raise TokenmillError(f"{command[0]} cannot be run: {error}") from error
    if status:
        end = "" if log is None else _describe_end(log)
        raise TokenmillError(f"{' '.join(command[:3])} failed with status {status}{end}")
    if log is not None:
        log.unlink()


def _describe_end(log: Path) -> str:
    """The last lines of a file, after its name."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LAST_BYTES))
        lines = file.read().decode(errors="replace").splitlines()[-NUM_LAST_LINES:]
    if not lines:
        log.unlink()
        return ", without any output"
    return "".join([f": its output is in {log}, and ends like this:", *(f"\n  {x}" for x in lines)])


def _write_csv(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        names = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(file, list(names))
        writer.writeheader()
        writer.writerows(rows)
