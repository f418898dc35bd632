"""One seed, one life of an engine: a random workload, random faults, and an oracle for every token.

The seed decides everything: sizes of pools and budgets, policies good and wild, arrivals, shared
prefixes, priorities, n > 1, aborts, deadlines, stop strings, failing steps and failing requests, one
or two plans in flight, and where policies raise. It drives the shipped EngineCore and PluginHost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenmill.core.blocks import hash_root
from tokenmill.core.config import EngineConfig
from tokenmill.core.engine import EngineCore, RequestUpdate
from tokenmill.core.errors import RequestFailedError
from tokenmill.core.hookspecs import hookimpl
from tokenmill.core.outputs import FinishReason
from tokenmill.core.plan import RequestFailure, StepPlan, StepResult
from tokenmill.core.plugin_host import PluginHost
from tokenmill.core.policy import StepView, Victim
from tokenmill.core.registry import Registry
from tokenmill.core.request import PromptGroup, Request
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.core.step import StepLimits
from tokenmill.testing.simulated_executor import SimulatedExecutor, expected_tokens

VOCAB = 1000
MAX_TURNS = 20_000


class PlantedError(Exception):
    """What faulty policies raise."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one life came to."""

    num_requests: int
    num_tokens: int
    num_preemptions: int
    num_turns: int


class RandomPolicies:
    """A plugin whose scheduler, order, preemption and admission do everything wrong that they can."""

    TOKENMILL_API = (1, 1)
    uses_priority = True
    modes: tuple[str, ...] = ("recompute", "swap")

    def __init__(self, rng: random.Random, fault_rate: float) -> None:
        self._rng = rng
        self._fault_rate = fault_rate

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.scheduler("random", lambda: _Scheduler(self._schedule))
        registry.preemption_mode("random", lambda: _Preemption(self._preempt))
        registry.scheduling_policy("random", lambda: self)
        registry.admission("random", lambda context: _Admission(self._maybe_raise))

    def key(self, request: Any, now: float) -> tuple[float, ...]:
        self._maybe_raise()
        return (self._rng.random(),)

    def _maybe_raise(self) -> None:
        if self._rng.random() < self._fault_rate:
            raise PlantedError

    def _schedule(self, step: StepView) -> None:
        requests = [*step.running, *step.waiting]
        self._rng.shuffle(requests)
        for request in requests:
            self._maybe_raise()
            if self._rng.random() < 0.2:
                step.limit(request, self._rng.randint(0, 3))
            step.schedule(request, self._rng.choice([None, None, 1, 3, 0, -1]))
            if self._rng.random() < 0.1:
                step.schedule(request)
        self._maybe_raise()

    def _preempt(self, step: Any, needy: Any, candidates: Any) -> Victim | None:
        self._maybe_raise()
        if self._rng.random() < 0.1:
            return None
        victim = self._rng.choice(candidates)
        return Victim(request=victim.request, mode=self._rng.choice(self.modes))


class _Scheduler:
    def __init__(self, function: Callable[[StepView], None]) -> None:
        self._function = function

    @hookimpl
    def schedule(self, step: StepView) -> None:
        self._function(step)


class _Preemption:
    modes: tuple[str, ...] = RandomPolicies.modes

    def __init__(self, function: Callable[..., Victim | None]) -> None:
        self._function = function

    @hookimpl
    def preempt(self, step: Any, needy: Any, candidates: Any) -> Victim | None:
        return self._function(step, needy, candidates)


class _Admission:
    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    @hookimpl
    def admit(self, request: Any, load: Any) -> None:
        self._function()


class Life:
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.block_size = rng.choice([1, 2, 4, 8])
        self.num_blocks = rng.randint(4, 64 if self.block_size < 4 else 32)
        num_host_blocks = rng.choice([0, 0, 2, 8, 64])
        self.max_inflight = rng.choice([1, 2])
        self.caches = rng.random() < 0.7
        self.fault_rate = rng.choice([0.0, 0.02])
        built_in = ("chunked", "prefill-first", "random")
        config = EngineConfig(
            scheduler=rng.choice(built_in),
            preemption_mode=rng.choice(["recompute", "swap", "lowest-priority", "random"]),
            scheduling_policy=rng.choice(["priority", "random"]),
            disable_log_stats=True,
        )
        policies = RandomPolicies(random.Random(seed + 1), self.fault_rate)
        self.core = EngineCore(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            num_host_blocks=num_host_blocks,
            max_model_len=10**6,
            limits=StepLimits(
                max_num_seqs=rng.randint(1, 16),
                max_num_batched_tokens=rng.randint(4, 64),
                long_prefill_token_threshold=rng.choice([0, 5]),
                watermark_blocks=rng.choice([0, 1]),
                enable_prefix_caching=self.caches,
            ),
            plugins=PluginHost.load(config, extra=[policies]),
            max_inflight=self.max_inflight,
        )
        self.executor = SimulatedExecutor(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            num_host_blocks=num_host_blocks,
            vocab_size=VOCAB,
        )
        self.now = 0.0
        self.stems = [self._tokens(rng.randint(1, 40)) for _ in range(3)]
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}
        self.reasons: dict[str, FinishReason] = {}
        self.open: list[StepPlan] = []

    def run(self) -> Outcome:
        """Live until all requests ended. Raises AssertionError for anything that went wrong."""
        to_come = self.rng.randint(3, 25)
        turns = 0
        while to_come or self.core.has_work:
            turns += 1
            assert turns < MAX_TURNS, "no end: a request is stuck"
            self.now += self.rng.choice([0.001, 0.01, 0.01, 0.5])
            while to_come and self.rng.random() < 0.3:
                to_come -= 1
                self._add()
            if self.requests and self.rng.random() < 0.05:
                self._disturb()
            self._turn()
        self._note(self.core.take_updates())
        self._check_end()
        return Outcome(
            len(self.requests),
            sum(map(len, self.tokens.values())),
            self.core.total_preemptions,
            turns,
        )

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCAB) for _ in range(count)]

    def _add(self) -> None:
        capacity = self.num_blocks * self.block_size
        stem = self.rng.choice(self.stems)
        prompt = stem[: self.rng.randint(1, len(stem))] + self._tokens(self.rng.randint(0, 4))
        prompt = prompt[: max(1, capacity - 1)]
        max_tokens = self.rng.randint(1, min(40, capacity - len(prompt) + 1))
        n = self.rng.choice([1, 1, 1, 1, 3])
        number = len(self.requests)
        group = PromptGroup() if n > 1 else None
        scope = "" if self.caches else str(number)
        priority = self.rng.choice([0, 0, 1])
        deadline = self.now + self.rng.random() * 5 if self.rng.random() < 0.1 else None
        members = [
            Request(
                request_id=f"{number}/{index}",
                prompt_token_ids=tuple(prompt),
                sampling_params=SamplingParams(n=n),
                max_tokens=max_tokens,
                arrival_time=self.now,
                seed=number * 8 + index,
                priority=priority,
                deadline=deadline,
                cache_root=hash_root("m", self.rng.choice(["", "salt"]), scope),
                publishes=self.caches or n > 1,
                group=group,
            )
            for index in range(n)
        ]
        if group is not None:
            root = members[0].cache_root
            for member in members:
                member.cache_root = root
        try:
            self.core.add(members, self.now)
        except RequestFailedError:
            return  # the random admission raised; nothing may be left of it
        for member in members:
            self.requests[member.request_id] = member
            self.tokens[member.request_id] = []

    def _disturb(self) -> None:
        """An abort, or a stop string that the detokenizer found."""
        name = self.rng.choice(list(self.requests))
        tokens = self.tokens[name]
        if tokens and self.rng.random() < 0.5:
            kept = self.rng.randint(1, len(tokens))
            if name not in self.reasons:
                del tokens[kept:]
            self.core.finish(name, FinishReason.STOP, self.now, num_tokens=kept)
        else:
            self.core.abort(name, self.now)
        self._check()

    def _turn(self) -> None:
        before = self.core.pool.digest(), self.core.host_pool.digest(), len(self.reasons)
        plan = self.core.plan(self.now)
        self._check()
        if plan is not None:
            self.open.append(plan)
        elif len(self.reasons) == before[2]:
            after = self.core.pool.digest(), self.core.host_pool.digest()
            assert after == before[:2], "a step that came to nothing left a trace"
        if not self.open:
            assert plan is None
            idle_on_purpose = self.core.wake_at is not None
            assert not self.core.has_work or idle_on_purpose, "work, room, and nothing was planned"
        elif plan is None or len(self.open) >= self.max_inflight or self.rng.random() < 0.5:
            self._finish(self.open.pop(0))

    def _finish(self, plan: StepPlan) -> None:
        self._check_plan(plan)
        if self.rng.random() < self.fault_rate:
            self.executor.crash(plan)
            updates = self.core.fail(plan, "planted", self.now)
        else:
            result = self._with_failures(plan, self.executor.run(plan))
            updates = self.core.commit(plan, result, self.now)
        self._note(updates)
        self._check()

    def _with_failures(self, plan: StepPlan, result: StepResult) -> StepResult:
        failures = tuple(
            RequestFailure(request_id=grant.request_id, message="NaN")
            for grant in plan.grants
            if self.rng.random() < self.fault_rate / 4
        )
        return StepResult(step_id=plan.step_id, token_ids=result.token_ids, failures=failures)

    def _check_plan(self, plan: StepPlan) -> None:
        limits = self.core._limits
        assert 0 < plan.num_tokens <= limits.max_num_batched_tokens, "the budget was not kept"
        assert len(plan.grants) <= limits.max_num_seqs, "more sequences than allowed"
        assert len({grant.request_id for grant in plan.grants}) == len(plan.grants)

    def _check(self) -> None:
        self._note(self.core.take_updates())
        self.core.check()

    def _note(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            assert update.request_id not in self.reasons, "an update after the end"
            self.tokens[update.request_id] += update.token_ids
            if update.finish_reason is not None:
                self.reasons[update.request_id] = update.finish_reason

    def _check_end(self) -> None:
        assert self.reasons.keys() == self.requests.keys(), "a request did not end exactly once"
        assert self.core.pool.num_held == self.core.host_pool.num_held == 0, "a block is still held"
        for name, request in self.requests.items():
            got = self.tokens[name]
            assert got == expected_tokens(request.prompt_token_ids, len(got), request.seed, VOCAB)
            assert len(got) <= request.max_tokens
            if self.reasons[name] is FinishReason.LENGTH:
                assert len(got) == request.max_tokens, "it ended too early"
            if self.reasons[name] is FinishReason.STOP:
                assert request.num_generated_tokens == len(got), "tokens after the stop are counted"
