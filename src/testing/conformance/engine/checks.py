"""Checks of rules that hold for every policy, shared by several suites.

`kind` is the registry's kind of the provider under test. `given` is the fixture's value: an object
or a factory. Every check raises AssertionError that says what was wrong.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ....core.outputs import FinishReason
from ....core.plan import StepPlan
from ..kept_memory import describe_growth
from .bench import TURN_SECONDS, EngineBench
from .workload import EngineShape, Job, random_job, random_jobs

_TURNS = 1000
"""Maximum number of turns: several times what the built-in policies need for the workload."""
STARVATION_BOUND = 300
"""Maximum number of turns that a request may wait while others are served. A turn is 0.05 s of the
engine's clock. The engine itself prefers a request that has waited for 1000 steps."""
_CROWDED = (
    EngineShape(name="few-seats", max_num_seqs=4, num_blocks=1024),
    EngineShape(name="small-budget", max_num_seqs=4, max_num_batched_tokens=8, num_blocks=1024),
)


def check_tokens(kind: str, given: object, shape: EngineShape) -> None:
    """Every request gets exactly the tokens that it would get alone."""
    check_tokens_of(serve(kind, given, shape))


def check_tokens_of(bench: EngineBench) -> None:
    """Every request of this engine got the tokens that it would get alone."""
    for engine_id, tokens in bench.tokens.items():
        assert tokens == bench.expected(engine_id), (
            f"{engine_id} got {tokens}, not {bench.expected(engine_id)}: "
            "does the plugin change a request?"
        )


def check_everyone_finishes(kind: str, given: object, shape: EngineShape) -> None:
    """Every request ends, with all of its tokens."""
    bench = serve(kind, given, shape)
    stuck = [r for r in bench.jobs if bench.reasons.get(r) is not FinishReason.LENGTH]
    assert not stuck, (
        f"{len(stuck)} of {len(bench.jobs)} requests had not ended after {_TURNS} turns: "
        f"{', '.join(stuck)}"
    )


def check_decides_itself(kind: str, given: object, shape: EngineShape, hook: str) -> None:
    """This hook never fails, so the built-in policy never decides instead of it."""
    failures = serve(kind, given, shape).failures.describe(hook)
    assert not failures, f"the built-in policy had to decide:\n{failures}"


def check_limits(kind: str, given: object, shape: EngineShape) -> None:
    """No plan exceeds the token budget or the sequence limit, or computes a request twice."""
    bench = serve(kind, given, shape)
    assert bench.most_running <= shape.max_num_seqs, (
        f"{bench.most_running} requests ran at once, the limit is {shape.max_num_seqs}"
    )
    for plan in bench.plans:
        assert plan.num_tokens <= shape.max_num_batched_tokens, (
            f"step {plan.step_id} computes {plan.num_tokens} tokens, the budget is "
            f"{shape.max_num_batched_tokens}"
        )
        [(engine_id, count)] = Counter(g.engine_id for g in plan.grants).most_common(1)
        assert count == 1, f"step {plan.step_id} grants {engine_id} {count} times"


def check_determinism(kind: str, given: object, shape: EngineShape) -> None:
    """The same requests lead to the same plans: nothing depends on chance, addresses or clocks."""
    compare_plans(*(serve(kind, given, shape).plans for _ in range(2)))


def compare_plans(first: Sequence[StepPlan], second: Sequence[StepPlan]) -> None:
    """The plans of two runs with the same requests are the same."""
    for one, other in zip(first, second, strict=False):
        assert one == other, (
            f"two runs with the same requests differ: step {one.step_id} was {one}, then {other}"
        )
    assert len(first) == len(second), (
        f"two runs with the same requests differ: {len(first)} steps, then {len(second)}"
    )


def check_decodes_all(kind: str, given: object, shape: EngineShape) -> None:
    """A scheduler with `decodes_all` schedules all requests, in order, in every step in which none
    waits and all decode."""
    bench = EngineBench(kind, given, shape)
    steady = bench.core.steady
    if steady is None:
        return  # it does not declare this
    for job in random_jobs(num_jobs=12):
        bench.add(job)
    while bench.core.has_work:
        is_steady = steady.num_steps() > 0
        running = [request.engine_id for request in steady.queues.running]
        granted = [grant.engine_id for plan in bench.turn() for grant in plan.grants]
        assert not is_steady or granted == running, (
            f"`decodes_all` is set, and no request waits, but {running} all decode and only "
            f"{granted} were scheduled"
        )


def check_aborts(kind: str, given: object, shape: EngineShape) -> None:
    """Aborted requests free all blocks, whenever they are aborted, with or without open plans."""
    jobs = random_jobs(num_jobs=6)
    bench = EngineBench(kind, given, shape)
    for turns in range(jobs[-1].at + 12):
        bench.run(jobs, turns=turns)
        bench.abort(list(bench.jobs)[::2])
        bench.turn()
        bench.abort(bench.jobs)
        bench.settle()
        assert bench.num_held_blocks == (0, 0), (
            f"after all requests were aborted in turn {turns}, {bench.num_held_blocks[0]} blocks "
            f"and {bench.num_held_blocks[1]} host blocks are still held"
        )
        bench.core.check()


def check_blocks_come_back(kind: str, given: object, shape: EngineShape) -> None:
    """When every request has ended by itself, no block is held on the device or in host memory."""
    bench = serve(kind, given, shape)
    if not bench.core.has_work:
        assert bench.num_held_blocks == (0, 0), (
            f"after all requests ended, {bench.num_held_blocks[0]} blocks and "
            f"{bench.num_held_blocks[1]} host blocks are still held"
        )


def check_nobody_starves(kind: str, given: object, bound: int) -> None:
    """In an engine that is always full, no request waits more than `bound` turns for a token."""
    rng = random.Random(1)
    short = [random_job(rng, 6, 3) for _ in range(50)]
    long = [random_job(rng, 96, 24) for _ in range(50)]
    for shape in _CROWDED:
        for name, odd, crowd in (("long", long[0], short), ("short", short[0], long)):
            waited, engine_id = _longest_wait(kind, given, shape, odd, crowd, bound)
            who = f"the {name} one" if engine_id == "request-0" else "one of the others"
            assert waited <= bound, (
                f"with {shape} and one {name} request among many others, {who} waited for more "
                f"than {bound} turns ({bound * TURN_SECONDS:g} s of the engine's clock)"
            )


def measure_plan_time(kind: str, given: object, num_requests: int) -> float:
    """Median time of `plan`, in seconds, with `num_requests` requests of which half run."""
    shape = EngineShape(
        name="large",
        num_blocks=num_requests * 2,
        block_size=16,
        max_num_seqs=num_requests,
        max_num_batched_tokens=num_requests // 2,
    )
    bench = EngineBench(kind, given, shape)
    for _ in range(num_requests):
        bench.add(Job(prompt=(1,), max_tokens=16))
    seconds = []
    for _ in range(6):
        bench.settle()
        started = time.perf_counter()
        bench.plan()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def describe_memory_growth(kind: str, given: object) -> str | None:
    """A finding if the provider keeps memory of requests that have ended; None if it does not."""
    bench = EngineBench(kind, given, _CROWDED[0])
    jobs = [replace(job, at=0) for job in random_jobs(num_jobs=4)]
    return describe_growth(bench.provider, lambda: bench.run(jobs, turns=_TURNS))


def serve(kind: str, given: object, shape: EngineShape, *watchers: object) -> EngineBench:
    """An engine that has served the random workload."""
    bench = EngineBench(kind, given, shape, *watchers)
    bench.run(random_jobs(num_jobs=40), turns=_TURNS)
    return bench


def _longest_wait(
    kind: str, given: object, shape: EngineShape, odd: Job, crowd: list[Job], bound: int
) -> tuple[int, str]:
    """The longest wait of a request, in turns, and its id. Stops when it exceeds the bound."""
    bench = EngineBench(kind, given, shape)
    served = {bench.add(odd).engine_id: 0}
    for turn in range(bound + 10):
        while bench.core.num_waiting < 8:
            served[bench.add(crowd[len(served) % len(crowd)]).engine_id] = turn
        for plan in bench.turn():
            served.update((grant.engine_id, turn) for grant in plan.grants)
        for engine_id in bench.reasons:
            served.pop(engine_id, None)
        longest = min(served, key=served.__getitem__)
        if turn - served[longest] > bound:
            break
    return turn - served[longest], longest
