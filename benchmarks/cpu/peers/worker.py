"""Measures an engine with a Python API: reads workloads from flags, and prints figures.

The engine's own file makes a function that answers requests, and calls `work`. This module runs in
every engine's environment, so it uses the standard library only.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence

from workloads import Request, mixed, uniform

Answer = Callable[[Sequence[Request]], None]
"""Generates for all requests at the same time, and returns when the last one is done."""

BATCHES = {"single": 1, "batch-8": 8, "batch-32": 32}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--precision", required=True, help="bf16 dequantizes the weights")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--workloads", nargs="+", required=True)
    parser.add_argument("--output-len", type=int, default=128)
    return parser.parse_args()


def work(args: argparse.Namespace, answer: Answer) -> None:
    """Measure each workload, and print its figures as a line of JSON."""
    answer(uniform(2, 32, 8, seed=1))  # warms up
    for name in args.workloads:
        say("begin", name)
        say("end", name, **measure(name, answer, args.output_len))


def measure(name: str, answer: Answer, output_len: int) -> dict[str, float]:
    """The figures of one workload, in tokens per second and in seconds."""
    if name in BATCHES:
        return _decode(answer, BATCHES[name], output_len)
    if name == "prefill-512":
        seconds = min(_seconds(answer, uniform(1, 512, 1, seed)) for seed in range(5))
        return {"tokens_per_second": 512 / seconds}
    requests = mixed()
    seconds = _seconds(answer, requests)
    return {"tokens_per_second": sum(r.max_tokens for r in requests) / seconds}


def say(event: str, workload: str, **figures: float) -> None:
    """Print one line for compare.py."""
    print(json.dumps({"event": event, "workload": workload, "figures": figures}), flush=True)


def _decode(answer: Answer, batch: int, output_len: int) -> dict[str, float]:
    """Decode only: all tokens but the first ones, in the time without that of the first ones."""
    first = min(_seconds(answer, uniform(batch, 128, 1, seed)) for seed in range(3))
    whole = min(_seconds(answer, uniform(batch, 128, output_len, seed)) for seed in range(2))
    return {
        "tokens_per_second": batch * (output_len - 1) / (whole - first),
        "time_to_first_token": first,
    }


def _seconds(answer: Answer, requests: Sequence[Request]) -> float:
    started = time.perf_counter()
    answer(requests)
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit("run one of the engines' own files, run_*.py")
