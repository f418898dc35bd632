"""Measures settings on real servers, in turns, under the same load."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..bench.client import Server
from ..bench.endpoints import Completions
from ..bench.prompts import Prompt
from ..bench.reports.figures import tpot
from ..bench.running import Answer, Load, Run, run
from ..bench.served import ServedCommand
from ..core.errors import ConfigError, TokenmillError
from ..planning.workload import PlannedRequest
from .limits import Limits

ROUNDS = "rounds.jsonl"
START_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    candidate: str
    load: str
    """A digest of its settings and of the load: only equal ones can be compared."""
    goodput: float = 0.0
    """Requests per second that kept all limits."""
    p99_ttft_ms: float = 0.0
    p99_itl_ms: float = 0.0
    error: str = ""
    """Why the server did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the tuned settings were better than the given ones in every round."""

    given: Sequence[float]
    tuned: Sequence[float]
    """Goodput of each round, in requests per second."""

    @property
    def gain(self) -> float | None:
        """The ratio of the medians, minus 1; None if the given settings kept the limits never."""
        given = statistics.median(self.given)
        return statistics.median(self.tuned) / given - 1 if given else None

    @property
    def is_better(self) -> bool:
        """Whether the worst round with the tuned settings beats the best one without them. A single
        round shows nothing."""
        return len(self.tuned) > 1 and min(self.tuned) > max(self.given)


class _TokenIds(Completions):
    """/v1/completions with prompts as token ids, so that lengths are exact."""

    def __init__(self, requests: Sequence[PlannedRequest], vocab_size: int) -> None:
        self._ids = [[id % vocab_size for id in one.prompt_token_ids] for one in requests]
        self.prompts = [
            Prompt(text=str(index), num_tokens=len(ids), max_tokens=one.max_tokens)
            for index, (ids, one) in enumerate(zip(self._ids, requests, strict=True))
        ]
        """Their texts are indexes."""

    def body(self, prompt: Prompt) -> dict[str, Any]:
        ids = self._ids[int(prompt.text)]
        return super().body(prompt) | {"prompt": ids, "ignore_eos": True, "temperature": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """Measures candidates under one load."""

    requests: Sequence[PlannedRequest]
    limits: Limits
    vocab_size: int
    folder: Path

    def measure(
        self,
        candidates: Mapping[str, Path],
        num_rounds: int,
        progress: Callable[[str, float], None],
    ) -> list[Round]:
        """Measure each candidate once per round, in another order each time.

        `candidates`: names, and files for `serve --config`. Rounds of the same settings and the
        same load that are in the folder are not repeated. Raises ConfigError if the first one, with
        the given settings, does not start.
        """
        loads = {name: self._digest(file) for name, file in candidates.items()}
        found = [one for one in self._done() if loads.get(one.candidate) == one.load]
        first = next(iter(candidates))
        for index in range(num_rounds):
            for name in _turn(list(candidates), index):
                if sum(one.candidate == name for one in found) > index:
                    continue
                stage = f"round {index + 1} of {num_rounds}: {name}"
                found.append(self._measure(name, loads[name], candidates[name], stage, progress))
                if found[-1].error and name == first:
                    raise ConfigError(found[-1].error)
                if found[-1].error:
                    continue  # the next run tries it again
                with (self.folder / ROUNDS).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(found[-1])) + "\n")
        return found

    def _done(self) -> Iterator[Round]:
        file = self.folder / ROUNDS
        if file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                yield Round(**json.loads(line))

    def _digest(self, config: Path) -> str:
        parts = (config.read_text(encoding="utf-8"), self.limits, self.requests)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def _measure(
        self,
        name: str,
        load: str,
        config: Path,
        stage: str,
        progress: Callable[[str, float], None],
    ) -> Round:
        progress(stage, 0.0)
        try:
            with _serving(config, self.folder / f"{name}.log") as url:
                measured = asyncio.run(self._send(url, lambda fraction: progress(stage, fraction)))
        except TokenmillError as error:
            return Round(candidate=name, load=load, error=str(error))
        good = sum(_keeps(answer, self.limits) for answer in measured.answers)
        return Round(
            candidate=name,
            load=load,
            goodput=good / measured.seconds,
            p99_ttft_ms=_p99([answer.ttft for answer in measured.answers]),
            p99_itl_ms=_p99([gap for answer in measured.answers for gap in answer.gaps]),
        )

    async def _send(self, url: str, progress: Callable[[float], None]) -> Run:
        server = Server(url=url)
        model = (await server.get_json("/v1/models"))["data"][0]["id"]
        endpoint = _TokenIds(self.requests, self.vocab_size)
        load = Load(server=server, endpoint=endpoint, path=endpoint.path, extra={"model": model})
        num_done = 0

        def on_answer() -> None:
            nonlocal num_done
            num_done += 1
            progress(num_done / len(self.requests))

        times = [request.at for request in self.requests]
        measured = await run(load, endpoint.prompts, times, on_answer)
        await server.close()
        return measured


def _turn(names: list[str], index: int) -> list[str]:
    first = index % len(names)
    return names[first:] + names[:first]


def _keeps(answer: Answer, limits: Limits) -> bool:
    return (
        answer.is_ok
        and answer.ttft * 1000 <= limits.ttft
        and tpot(answer) * 1000 <= limits.tpot
        and _p99(answer.gaps) <= limits.itl
        and answer.latency * 1000 <= limits.e2el
    )


def _p99(seconds: Sequence[float]) -> float:
    return float(np.percentile(seconds, 99)) * 1000 if seconds else 0.0


@contextlib.contextmanager
def _serving(config: Path, log: Path) -> Iterator[str]:
    """The URL of a server with this file as --config. Raises TokenmillError if it does not
    start."""
    words = ("serve", "--config", str(config), "--port", str(_free_port()))
    server = ServedCommand(
        command=[sys.executable, "-m", "tokenmill", *words, "--no-enable-log-requests"],
        environment={name: value for name, value in os.environ.items() if "API_KEY" not in name},
        timeout=START_SECONDS,
        log=log,
    )
    try:
        server.get_ready()
        yield server.url
    finally:
        server.stop()


def _free_port() -> int:
    """A port that nobody uses now. If another program takes it first, the server does not start."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
