"""Starts an engine in its own fresh process, and splits the time. startup.py reads the JSON."""

from __future__ import annotations

import argparse
import builtins
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

PARTS = {
    "headers": "tokenmill.backends.models.opening:open_model",
    "tokenizer": "tokenmill.assembly:_load_tokenizer",
    "kernels": "tokenmill.backends.cpu.native.library:_load_first",
    "weights": "tokenmill.backends.execution.in_process:load_parts",
    "packing": "tokenmill.backends.cpu.native.library:Library.pack",
}
"""Parts of the start, and the functions that do them. A part's time is without inner parts."""


class Split:
    """Sums seconds by part. Parts may be nested; the start uses one thread at a time."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.cpu: defaultdict[str, float] = defaultdict(float)
        """Of all threads together."""
        self._inner: list[tuple[float, float]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time in here as the part's, except that of parts inside."""
        begun, used = time.perf_counter(), time.process_time()
        self._inner.append((0.0, 0.0))
        try:
            yield
        finally:
            passed, used = time.perf_counter() - begun, time.process_time() - used
            inner_passed, inner_used = self._inner.pop()
            self.seconds[name] += passed - inner_passed
            self.cpu[name] += used - inner_used
            if self._inner:
                outer_passed, outer_used = self._inner[-1]
                self._inner[-1] = outer_passed + passed, outer_used + used

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its time counts as the part's."""

        def call(*args: Any, **named: Any) -> Any:
            with self.part(name):
                return function(*args, **named)

        return call

    def timed_imports(self) -> Any:
        """Count the time of imports; those inside another import are part of it."""
        depth = threading.local()
        real = builtins.__import__

        def call(*args: Any, **named: Any) -> Any:
            if getattr(depth, "value", 0):
                return real(*args, **named)
            depth.value = 1
            try:
                with self.part("imports"):
                    return real(*args, **named)
            finally:
                depth.value = 0

        return patch.object(builtins, "__import__", call)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Wrap the functions of all parts, and imports."""
        with ExitStack() as stack:
            stack.enter_context(self.timed_imports())
            for name, place in PARTS.items():
                module, _, path = place.partition(":")
                *owners, attribute = path.split(".")
                owner: Any = import_module(module)
                for one in owners:
                    owner = getattr(owner, one)
                timed = self.timed(name, getattr(owner, attribute))
                stack.enter_context(patch.object(owner, attribute, timed))
            yield


class PeakMemory:
    """Watches this process's memory from a thread. Figures are in MiB."""

    def __init__(self) -> None:
        self.anonymous = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> dict[str, float]:
        """Peaks of all resident memory, and of memory that is not mapped from files."""
        self._ended.set()
        self._thread.join()
        now = read_status()
        return {
            "peak_rss": now["VmHWM"],
            "peak_anonymous": max(self.anonymous, now["RssAnon"]),
            "anonymous": now["RssAnon"],
        }

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.anonymous = max(self.anonymous, read_status()["RssAnon"])


def read_status() -> dict[str, float]:
    """This process's memory in MiB, by its names in /proc."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(":") for line in lines)
    return {name: int(text.split()[0]) / 1024 for name, text in pairs if text.endswith(" kB")}


def start(args: argparse.Namespace) -> dict[str, Any]:
    """Start the engine and generate a token. Return seconds by part, and memory."""
    split, memory = Split(), PeakMemory()
    split.seconds["Python"] = time.time() - args.spawned
    begun = time.perf_counter()
    split.cpu["Python"] = time.process_time()
    with split.part("torch"):
        import torch  # noqa: F401
    with split.timed_imports():
        from tokenmill import LLM, SamplingParams
    with split.watching(), LLM(args.model, device="cpu", disable_log_stats=True) as llm:
        ready = time.perf_counter() - begun
        cpu_seconds = time.process_time()
        split.cpu["rest"] = cpu_seconds - sum(split.cpu.values())
        split.seconds["rest"] = ready + split.seconds["Python"] - sum(split.seconds.values())
        figures = memory.end()
        once = time.perf_counter()
        llm.generate([[5]], SamplingParams(max_tokens=1, ignore_eos=True), use_tqdm=False)
        first_token = time.perf_counter() - once
    return {
        "parts": dict(split.seconds),
        "cpu_parts": dict(split.cpu),
        "ready": ready + split.seconds["Python"],
        "cpu": cpu_seconds,
        "first_token": first_token,
        "memory": figures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--spawned", type=float, required=True, help="time.time() before it")
    json.dump(start(parser.parse_args()), sys.stdout)
    print()


if __name__ == "__main__":
    main()
