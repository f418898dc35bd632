"""Measures a real executor: probe steps for its step times, the real loop for its overhead."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from ..core.config import EngineConfig
from ..core.errors import ConfigError
from ..core.interfaces import Computation, Executor, ModelInfo, Pending, Progress
from ..core.plan import StepPlan, StepResult
from ..core.requests.sampling_params import SamplingParams
from ..core.shell.local_engine import EngineParts, local_engine
from .fitting import fit_step_time
from .probes import PlanMaker, Probe, knots_up_to, probes_to_check, probes_to_fit
from .step_time import CheckedStep, StepTimeModel, StepTimes, StepWork

Clock = Callable[[], float]
_TimedStep = tuple[StepWork, float, float]
"""The work of a step, and the times when it began and ended, in seconds."""

LARGEST_STEP = 512
"""Size of the largest measured step, in tokens, unless the engine's token budget is larger."""
MIN_ROUNDS = 3
MAX_ROUNDS = 25
_LOOP_PROMPT = 8
_LOOP_STEPS = 24


def measure_step_times(
    parts: EngineParts,
    config: EngineConfig,
    *,
    machine: Mapping[str, str | int | float],
    date: str,
    progress: Progress,
    seconds: float = 30.0,
    clock: Clock = time.perf_counter,
) -> StepTimes:
    """Measure steps for about `seconds`, at least MIN_ROUNDS rounds, then the engine's loop.

    Every round runs every step once, in another order, so that a busy moment of the machine does
    not hit the same step each time. The median of the rounds counts. The caller closes `parts`.
    Raises ConfigError if the KV cache or --max-model-len is too small, or if the scheduler never
    puts several decodes into one step.
    """
    info = parts.executor.info
    room = _room(info, config)
    step_tokens = config.token_budget(info.device, info.largest_span_tokens)
    knots = knots_up_to(min(room, max(LARGEST_STEP, step_tokens)))
    fitted, checked = probes_to_fit(knots, info), probes_to_check(knots, info)
    works, taken = _measure_probes(parts.executor, [*fitted, *checked], progress, seconds, clock)
    medians = {probe: statistics.median(found) for probe, found in taken.items()}
    model = fit_step_time([(works[probe], medians[probe]) for probe in fitted], knots)
    model, loop_steps = _measure_loop(parts, config, model, progress, clock)
    checks = (*(_check(str(p), works[p], medians[p], model) for p in checked), *loop_steps)
    return StepTimes(
        date=date,
        machine=machine,
        model=info,
        step_time=model,
        num_fitted_steps=len(fitted),
        num_rounds=len(taken[fitted[0]]),
        median_relative_error=statistics.median(step.relative_error for step in checks),
        checked=checks,
        median_spread=statistics.median(map(_spread, taken.values())),
    )


def _spread(rounds: Sequence[float]) -> float:
    """The range of the middle half of some durations, divided by their median."""
    lower, middle, upper = statistics.quantiles(rounds, n=4, method="inclusive")
    return (upper - lower) / middle


def _room(info: ModelInfo, config: EngineConfig) -> int:
    """The longest sequence to measure, in tokens. Raises ConfigError if it is too short."""
    needed = _LOOP_PROMPT + _LOOP_STEPS
    room = info.num_blocks // len(info.kv_windows) * info.block_size
    if room < needed:
        raise ConfigError(
            f"a KV cache of {room} tokens is too small to measure: {needed} tokens are needed"
        )
    longest = min(info.max_model_len, config.max_model_len or info.max_model_len)
    if longest < needed:
        raise ConfigError(f"--max-model-len must be at least {needed} to measure, got {longest}")
    return min(room, longest)


def _check(name: str, work: StepWork, seconds: float, model: StepTimeModel) -> CheckedStep:
    return CheckedStep(
        name=name, measured_seconds=seconds, predicted_seconds=model.run_seconds(work)
    )


# Steps alone


def _measure_probes(
    executor: Executor, probes: Sequence[Probe], progress: Progress, seconds: float, clock: Clock
) -> tuple[dict[Probe, StepWork], dict[Probe, list[float]]]:
    """Work of each probe, and its seconds in each round."""
    maker = PlanMaker(executor.info)
    works: dict[Probe, StepWork] = {}
    taken: dict[Probe, list[float]] = defaultdict(list)
    _run(executor, maker, probes[0], clock)  # warm-up: the first step is slower
    begin = clock()
    num_rounds = 0
    while num_rounds < MIN_ROUNDS or (num_rounds < MAX_ROUNDS and clock() - begin < seconds):
        shuffled = random.Random(num_rounds).sample(probes, len(probes))
        for index, probe in enumerate(shuffled):
            works[probe], duration = _run(executor, maker, probe, clock)
            taken[probe].append(duration)
            by_rounds = (num_rounds + index / len(probes)) / MIN_ROUNDS
            progress("measuring steps", min(by_rounds, (clock() - begin) / seconds, 0.99))
        num_rounds += 1
    progress("measuring steps", 1.0)
    return works, taken


def _run(
    executor: Executor, maker: PlanMaker, probe: Probe, clock: Clock
) -> tuple[StepWork, float]:
    """Run a probe; returns the work of its last step, and its duration in seconds."""
    duration, work = 0.0, None
    for plan in maker.plans(probe):
        work = StepWork.of(plan)
        begin = clock()
        executor.launch(plan).result()
        duration = clock() - begin
    assert work is not None
    return work, duration


# Steps in the engine's loop


class _WatchedExecutor:
    """An executor that records the begin and end of each step. Its owner closes the real one."""

    def __init__(self, executor: Executor, clock: Clock) -> None:
        self.steps: list[_TimedStep] = []
        self._executor = executor
        self._clock = clock

    @property
    def info(self) -> ModelInfo:
        return self._executor.info

    def launch(self, plan: StepPlan) -> Computation:
        pending = self._executor.launch(plan)
        return Computation(partial(self._watch, pending), plan)

    def health(self) -> str | None:
        return self._executor.health()

    def _watch(self, pending: Pending, plan: StepPlan) -> StepResult:
        begin = self._clock()
        result = pending.result()
        self.steps.append((StepWork.of(plan), begin, self._clock()))
        return result

    def close(self) -> None:
        """Do nothing: the owner still uses the executor."""


def _measure_loop(
    parts: EngineParts,
    config: EngineConfig,
    model: StepTimeModel,
    progress: Progress,
    clock: Clock,
) -> tuple[StepTimeModel, list[CheckedStep]]:
    """Add the loop's overheads to the model. Also returns decodes in the loop as further checks.

    The real engine serves one request, then several. Between two steps the device waits for commit,
    plan and the hand-over between threads: that time is the overhead.
    """
    progress("measuring the engine's loop", 0.0)
    info = parts.executor.info
    # Half of the token budget is left for prompts, so that all requests decode before the first
    # one ends.
    step_tokens = config.token_budget(info.device, info.largest_span_tokens)
    most = min(16, config.max_num_seqs, info.num_blocks // 4, step_tokens // 2)
    waits, checks = {}, []
    counts = sorted({1, max(1, most)})
    for count, steps in asyncio.run(_serve(parts, config, counts, clock)).items():
        if len(steps) < 2:
            raise ConfigError(
                f"the scheduler {parts.plugins.names['scheduler']!r} never let {count} requests "
                "decode together, so the engine's loop cannot be measured: choose another one"
            )
        waits[count] = statistics.median(b[1] - a[2] for a, b in pairwise(steps))
        seconds = statistics.median(end - begin for _, begin, end in steps)
        name = f"{count} decodes in the engine's loop"
        checks.append(_check(name, steps[len(steps) // 2][0], seconds, model))
    progress("measuring the engine's loop", 1.0)
    return _with_overhead(model, waits), checks


async def _serve(
    parts: EngineParts, config: EngineConfig, counts: Sequence[int], clock: Clock
) -> dict[int, list[_TimedStep]]:
    """Serve each of these numbers of requests, and return the steps where all decode."""
    watched = _WatchedExecutor(parts.executor, clock)
    watched_parts = EngineParts(executor=watched, tokenizer=parts.tokenizer, plugins=parts.plugins)
    engine = local_engine(config, lambda config, progress: watched_parts)
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=_LOOP_STEPS)

    async def read(number: int) -> None:
        prompt = [(number + i) % parts.executor.info.vocab_size for i in range(_LOOP_PROMPT)]
        async for _ in engine.generate(prompt, params):
            pass

    found = {}
    async with engine:
        for count in counts:
            watched.steps.clear()
            await asyncio.gather(*(read(number) for number in range(count)))
            found[count] = [
                step
                for step in watched.steps
                if step[0].num_requests == step[0].num_tokens == count
            ]
    return found


def _with_overhead(model: StepTimeModel, waits: Mapping[int, float]) -> StepTimeModel:
    """Fit a straight line to the waits: the overhead per step, and per request of a step."""
    fewest, most = min(waits), max(waits)
    per_request = 0.0
    if most > fewest:
        per_request = max(0.0, (waits[most] - waits[fewest]) / (most - fewest))
    per_step = max(0.0, waits[fewest] - per_request * fewest)
    return replace(model, overhead_per_step=per_step, overhead_per_request=per_request)
