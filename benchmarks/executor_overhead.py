"""Measures the time that a worker process adds to a step, without a model and without an engine.

python benchmarks/executor_overhead.py --help

The same steps of a simulated model are computed in this process and in a worker process, in turns.
The difference is the time to send a plan and its result: msgpack, shared memory, and waking two
processes. Each step is launched after the result of the step before it, so nothing overlaps.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from recording import make_parser, make_table, record, summarize
from rich.console import Console

from tokenmill.backends.execution.workers.executor import MultiProcess
from tokenmill.core.interfaces import Executor, no_progress
from tokenmill.core.plan import Grant, StepPlan
from tokenmill.testing.conformance.executor.checks import make_spec, prompt_plan
from tokenmill.testing.conformance.executor.worker import load_simulated


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


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--steps", type=int, default=300, help="steps of each round")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    table = make_table("µs per step", "in process", "worker", "difference")
    result = {}
    for count in args.requests:
        found: dict[str, list[float]] = {"in process": [], "worker": [], "difference": []}
        for _ in range(args.rounds):
            worker = MultiProcess.start(make_spec())
            num_blocks = args.steps // 16 + 2
            own = Steps(load_simulated(no_progress), count, num_blocks)
            other = Steps(worker, count, num_blocks)
            pairs = [(own.microseconds(), other.microseconds()) for _ in range(args.steps)]
            here, there = (statistics.median(times) for times in zip(*pairs, strict=True))
            worker.close()
            for name, value in zip(found, (here, there, there - here), strict=True):
                found[name].append(value)
        result[str(count)] = {name: summarize(values) for name, values in found.items()}
        row = (f"{one['median']:.0f}" for one in result[str(count)].values())
        table.add_row(f"{count} requests", *row)
    Console().print(table)
    record(args, "executor_overhead", {"microseconds_by_requests": result})


if __name__ == "__main__":
    main()
