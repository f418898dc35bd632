"""Measures the cost of the plugin system in an engine step, compared with direct calls.

python benchmarks/hook_cost.py --help

One engine decodes, with another host of plugins in each step of a round. `plugins` is the default
set of plugins behind PluginHost, as in a server: pluggy, timing, containment of errors. `direct`
only calls the methods of the same scheduler and observers. `bare` has no observers. A step here is
everything but the model: plan and commit. Figures are medians of the thread's CPU time over the
steps. The cost of the hooks is the median of the differences between steps of one round.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, cast

from recording import make_parser, make_table, record
from rich.console import Console

from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.events import Finished, Preempted, StepDone
from tokenmill.core.contract.policy import PreemptionCandidate, RequestView, StepView, Victim
from tokenmill.core.contract.providers.deciders import last_come
from tokenmill.core.contract.registry import PluginContext
from tokenmill.core.engine.blocks.pool import hash_root
from tokenmill.core.engine.engine_core import EngineCore
from tokenmill.core.engine.request import Request
from tokenmill.core.engine.step import StepLimits
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.plan import StepPlan, StepResult
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.plugins.observers.prometheus import PrometheusMetrics
from tokenmill.plugins.observers.stats_log import StatsLog, StatsLogOptions
from tokenmill.plugins.orders.fcfs import FirstComeFirstServed
from tokenmill.plugins.schedulers.chunked import Chunked

STEP_MICROSECONDS = 5000.0
"""Duration of a fast step of a small model. The hooks' cost is shown as a fraction of it."""
BLOCK_SIZE = 16
NUM_PROMPT_TOKENS = 16
WARM_UP_ROUNDS = 20


class DirectCalls:
    """Replaces PluginHost by direct calls of the same functions."""

    def __init__(self, *, observed: bool) -> None:
        self.order = FirstComeFirstServed()
        self._scheduler = Chunked()
        self._listeners: dict[type, tuple[Callable[[Any], None], ...]] = {}
        if observed:
            stats = StatsLog(StatsLogOptions())
            metrics = PrometheusMetrics(PluginContext(config=EngineConfig()))
            self._listeners = {
                StepDone: (metrics.on_step, stats.on_step),
                Finished: (metrics.on_finished,),
                Preempted: (metrics.on_preempted, stats.on_preempted),
            }

    def admit(self, request: RequestView, load: object) -> None:
        return None

    def schedule(self, step: StepView) -> bool:
        self._scheduler.schedule(step)
        return True

    def sort_waiting(self, requests: Iterable[Request], now: float) -> list[Request]:
        return sorted(requests, key=lambda request: self.order.key(request.view, now))

    def preempt(
        self, step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
    ) -> Victim | None:
        return last_come(candidates)

    def observes(self, event: type) -> bool:
        return event in self._listeners

    def flush(self) -> None:
        pass

    def emit(self, event: object) -> None:
        for listener in self._listeners.get(type(event), ()):
            listener(event)


class Relay:
    """The engine's PluginHost, which can be replaced by another one between two steps.

    One engine per host would not do: the places of their objects in memory make a greater
    difference than the hooks.
    """

    def use(self, host: PluginHost | DirectCalls) -> None:
        """Take the host's bound methods, so that calls have no extra cost."""
        self.order = host.order
        self.admit = host.admit
        self.schedule = host.schedule
        self.sort_waiting = host.sort_waiting
        self.preempt = host.preempt
        self.observes = host.observes
        self.emit = host.emit
        self.flush = host.flush


class Bench:
    """An engine whose requests all decode, with a simulated clock."""

    def __init__(self, num_requests: int, num_steps: int) -> None:
        num_tokens = NUM_PROMPT_TOKENS + num_steps + 2
        self._relay = Relay()
        self.core = EngineCore(
            num_blocks=num_requests * (num_tokens // BLOCK_SIZE + 1),
            block_size=BLOCK_SIZE,
            max_model_len=num_tokens + 1,
            limits=StepLimits(
                max_num_seqs=num_requests,
                max_num_batched_tokens=num_requests * NUM_PROMPT_TOKENS,
                long_prefill_token_threshold=0,
                watermark_blocks=0,
                enable_prefix_caching=True,
            ),
            plugins=cast(PluginHost, self._relay),
        )
        self._now = 0.0
        self._relay.use(DirectCalls(observed=False))
        for index in range(num_requests):
            self.core.add([_make_request(index, num_steps + 2)], self._now)
        self.step(DirectCalls(observed=False))  # the prompts

    def step(self, host: PluginHost | DirectCalls) -> int:
        """Plan and commit one step. Returns nanoseconds of CPU time, without the executor's."""
        self._relay.use(host)
        self._now += 0.005
        started = time.thread_time_ns()
        plan = self.core.plan(self._now)
        planned = time.thread_time_ns()
        assert plan is not None
        result = _sample(plan)
        resumed = time.thread_time_ns()
        self.core.commit(plan, result, self._now)
        return planned - started + time.thread_time_ns() - resumed


def _make_request(index: int, max_tokens: int) -> Request:
    prompt = tuple((index * 31 + i) % 1000 for i in range(NUM_PROMPT_TOKENS))
    return Request(
        request_id=f"request-{index}",
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(),
        max_tokens=max_tokens,
        arrival_time=0.0,
        seed=index,
        cache_root=hash_root("bench"),
    )


def _sample(plan: StepPlan) -> StepResult:
    """The result of an executor that computes nothing."""
    return StepResult(step_id=plan.step_id, token_ids=((7,),) * len(plan.grants))


def measure(num_requests: int, num_rounds: int) -> dict[str, float]:
    """Microseconds per step with each host, and the cost of the hooks."""
    hosts: dict[str, PluginHost | DirectCalls] = {
        "plugins": PluginHost.load(EngineConfig.from_options(scheduler="chunked")),
        "direct": DirectCalls(observed=True),
        "bare": DirectCalls(observed=False),
    }
    names = list(hosts)
    bench = Bench(num_requests, (WARM_UP_ROUNDS + num_rounds) * len(names))
    taken: dict[str, list[int]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    for turn in range(WARM_UP_ROUNDS + num_rounds):
        for name in names if turn % 2 else reversed(names):
            taken[name].append(bench.step(hosts[name]))
    gc.enable()
    taken = {name: values[WARM_UP_ROUNDS:] for name, values in taken.items()}
    cost = _median_difference(taken["plugins"], taken["direct"])
    return {
        **{name: statistics.median(values) / 1000 for name, values in taken.items()},
        "hooks": cost,
        "hooks_and_observers": _median_difference(taken["plugins"], taken["bare"]),
        "part_of_step": cost / STEP_MICROSECONDS,
    }


def _median_difference(these: list[int], those: list[int]) -> float:
    return statistics.median(a - b for a, b in zip(these, those, strict=True)) / 1000


def show(results: dict[int, dict[str, float]]) -> None:
    """Print the table."""
    table = make_table(
        "requests", "plugins µs", "direct µs", "bare µs", "hooks µs", "of a 5 ms step"
    )
    for num_requests, row in results.items():
        figures = [f"{row[name]:.1f}" for name in ("plugins", "direct", "bare", "hooks")]
        table.add_row(str(num_requests), *figures, f"{row['part_of_step']:.2%}")
    Console().print(table)


def parse_args() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--num-requests", type=int, nargs="+", default=[1, 32, 256], help="concurrent requests"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=2400,
        help="rounds of three steps; an eighth of them with 256 requests",
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    results = {}
    for num_requests in args.num_requests:
        rounds = max(1, args.rounds // max(1, num_requests // 32))
        print(f"{num_requests} requests, {rounds} rounds", flush=True)
        results[num_requests] = measure(num_requests, rounds)
    show(results)
    rounded = {
        str(n): {name: round(value, 5) for name, value in row.items()} for n, row in results.items()
    }
    record(args, "hook_cost", {"microseconds_per_step": rounded})


if __name__ == "__main__":
    main()
