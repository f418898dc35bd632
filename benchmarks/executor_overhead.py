"""Measures the time that worker processes add to a step, without a model and without an engine.

python benchmarks/executor_overhead.py --help

The same steps of a simulated model are computed in this process and by each executor, in turns.
The difference is the time to send a plan and its result: msgpack, and waking processes through
shared memory (multiprocess) or calls of actors (ray, which starts a cluster of its own). Each rank
computes the whole model. Each step is launched after the result of the step before it, so nothing
overlaps.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from recording import make_parser, make_table, record, summarize
from rich.console import Console

from tokenmill.backends.execution.base import ExecutorProvider
from tokenmill.backends.execution.providers import MultiProcessProvider
from tokenmill.backends.execution.ray.options import RayOptions
from tokenmill.backends.execution.ray.provider import RayProvider
from tokenmill.core.config import EngineConfig
from tokenmill.core.interfaces import Executor, no_progress
from tokenmill.core.plan import Grant, StepPlan
from tokenmill.testing.conformance.executor.worker import load_simulated, make_spec, prompt_plan

PROVIDERS: dict[str, ExecutorProvider] = {
    "multiprocess": MultiProcessProvider(),
    "ray": RayProvider(RayOptions()),
}
Contender = tuple[ExecutorProvider, int]
"""An executor, and its number of ranks."""


class Steps:
    """Decode steps of one executor, in which each of some requests gets a token."""

    def __init__(self, executor: Executor, num_requests: int, num_blocks: int) -> None:
        self._executor = executor
        self._step_id = 1
        self._ids = [f"r{number}" for number in range(num_requests)]
        plans = [prompt_plan(name, (1, 2, 3), 1) for name in self._ids]
        grants = [
            replace(plan.grants[0], new_block_ids=(tuple(range(at, at + num_blocks)),))
            for plan, at in zip(plans, range(0, num_requests * num_blocks, num_blocks), strict=True)
        ]
        starts = tuple(plan.starts[0] for plan in plans)
        executor.launch(StepPlan(step_id=1, starts=starts, grants=tuple(grants))).result()

    def microseconds(self) -> float:
        """Compute one step."""
        self._step_id += 1
        start = self._step_id + 1  # the prompt has three tokens
        grants = [
            Grant(engine_id=name, start=start, num_tokens=1, new_block_ids=(), samples=True)
            for name in self._ids
        ]
        plan = StepPlan(step_id=self._step_id, grants=tuple(grants))
        begin = time.perf_counter()
        self._executor.launch(plan).result()
        return (time.perf_counter() - begin) * 1e6


def measure(contender: Contender, count: int, num_steps: int) -> dict[str, float]:
    """Compare the median microseconds of a step in this process and with a contender."""
    provider, size = contender
    executor = provider(make_spec(EngineConfig(tensor_parallel_size=size)))
    num_blocks = num_steps // 16 + 2
    own = Steps(load_simulated(no_progress), count, num_blocks)
    other = Steps(executor, count, num_blocks)
    pairs = [(own.microseconds(), other.microseconds()) for _ in range(num_steps)]
    executor.close()
    here, there = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {"inprocess": here, "executor": there, "difference": there - here, "ratio": there / here}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--executors", nargs="+", default=["multiprocess"], choices=[*PROVIDERS])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1], help="numbers of ranks")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--steps", type=int, default=300, help="steps of each round")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    contenders = {
        f"{name}, size {size}": (PROVIDERS[name], size)
        for name in args.executors
        for size in args.sizes
    }
    table = make_table("µs per step", "requests", "in process", "executor", "difference", "ratio")
    result: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for name, contender in contenders.items():
        result[name] = {}
        for count in args.requests:
            rounds = [measure(contender, count, args.steps) for _ in range(args.rounds)]
            figures = {key: summarize([one[key] for one in rounds]) for key in rounds[0]}
            result[name][str(count)] = figures
            *micros, ratio = (one["median"] for one in figures.values())
            table.add_row(name, str(count), *(f"{one:.0f}" for one in micros), f"{ratio:.1f}x")
    Console().print(table)
    record(args, "executor_overhead", {"microseconds_by_executor": result})


if __name__ == "__main__":
    main()
