"""A life: one simulated run of an engine, with a random workload, random faults and all checks.

The seed determines everything: pool sizes and budgets, policies (right and wild), arrivals, shared
prefixes, priorities, n > 1, stop tokens, aborts, deadlines, stop strings, failing steps, failing
requests, requests with which every step fails, results that are late or lost, slow steps and jumps
of the clock, one or two plans in flight, or one per stage of the model, right and wrong drafts, and
exceptions in plugins. It drives the real EngineCore and PluginHost.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...core.config import EngineConfig
from ...core.engine.blocks.pool import hash_block, hash_root
from ...core.engine.engine_core import EngineCore
from ...core.engine.media import MediaPool
from ...core.engine.request import PromptGroup, Request
from ...core.errors import RequestFailedError
from ...core.host.plugin_host import PluginHost
from ...core.outputs import FinishReason
from ...core.plan import Grant, RequestFailure, StepPlan, StepResult
from ...core.requests.media import MediaItem
from ...core.requests.request_options import RequestOptions
from ...core.requests.sampling_params import SamplingParams
from ..engine_driver import EngineDriver
from ..simulated.executor import SimulatedExecutor, expected_tokens
from ..simulated.pictures import BYTES_PER_TOKEN, PLACEHOLDER, with_rows
from ..simulated.pipeline import Fate, Journey, SimulatedPipeline
from .settings import LifeSettings, Outcome
from .wild_plugin import BadObserver, CacheObserver, Chance, WildPlugin

VOCAB = 1000
FAULTY_TURNS = 100
"""Number of turns after which faults, aborts and stop strings end, if all requests have arrived."""
CALM_TURNS = 5_000
"""Maximum number of turns after that. All remaining requests must end within them."""
SLOW_STEP = 30.0
"""Duration of a slow step, in seconds."""
STEP_LOG_SIZE = 1 << 22
"""Bytes: enough for all steps of a life."""
CLOCK_JUMPS = (-10.0, 3600.0)
"""Jumps of the clock, in seconds."""


class Life:
    """The simulation of one seed. `settings` replaces the settings that the seed would draw."""

    def __init__(
        self,
        seed: int,
        settings: LifeSettings | None = None,
        *,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings or LifeSettings.of_seed(seed)
        self._pictures = random.Random(f"images {seed}")
        self._rng = random.Random(f"life {seed}")
        self._trace = trace
        self._chance = Chance(random.Random(f"plugins {seed}"), self.settings.fault_rate)
        self._faults = Chance(random.Random(f"device {seed}"), self.settings.fault_rate)
        self._plugin = WildPlugin(self._chance)
        self._cache = CacheObserver()
        stages = [self._make_stage() for _ in range(self.settings.num_stages)]
        speed = random.Random(f"speed {seed}")
        self._executor = SimulatedPipeline(stages, speed, self._choose_fate)
        self._core = self._make_core()
        self._driver = EngineDriver(self._core, self._executor)
        self._stops = random.Random(f"stops {seed}")
        self._curses = random.Random(f"curses {seed}")
        self._cursed: dict[str, int] = {}
        """By request, the position of the token whose computation makes each step fail."""
        self._may_fail: set[str] = set()
        """Requests that may end with an error: they failed, or were alone in a step that did."""
        self._num_failed_steps = self._num_lost_results = 0
        self._went_back = False
        """Whether the clock has jumped back. Then latencies do not add up."""
        self._stems = [self._random_tokens(self._rng.randint(1, 40)) for _ in range(3)]
        self._places = [self._draw_places(stem) for stem in self._stems]
        self._requests = self._driver.requests
        self._tokens = self._driver.tokens
        self._reasons = self._driver.reasons
        self._num_passed_grants = self._num_spans = 0
        self._drafted: dict[str, tuple[int, int]] = {}
        """Draft tokens verified, and accepted, by request."""

    def run(self) -> Outcome:
        """Run until all requests have ended. Raises AssertionError if the engine errs."""
        self._say(f"{self.settings}")
        to_come = self.settings.num_requests
        turns = calm_turns = 0
        while to_come or self._core.has_work:
            turns += 1
            self._pass_time()
            while to_come and self._rng.random() < 0.3:
                to_come -= 1
                self._add()
            if not to_come and turns > FAULTY_TURNS:
                self._chance.rate = self._faults.rate = 0.0
                calm_turns += 1
                assert calm_turns < CALM_TURNS, "a request is stuck, although faults have ended"
            elif self._requests and self._rng.random() < 0.05:
                self._disturb()
            self._turn()
        self._driver.check()
        self._check_end()
        return self._outcome(turns)

    def _make_stage(self) -> SimulatedExecutor:
        return SimulatedExecutor(
            num_blocks=self.settings.num_blocks,
            block_size=self.settings.block_size,
            num_host_blocks=self.settings.num_host_blocks,
            vocab_size=VOCAB,
            kv_windows=self.settings.kv_windows,
            drafting=self.settings.drafting,
            media_bytes=self.settings.media_bytes,
        )

    def _make_core(self) -> EngineCore:
        settings = self.settings
        config = EngineConfig.from_options(
            scheduler=settings.scheduler,
            preemption_mode=settings.preemption_mode,
            scheduling_policy=settings.scheduling_policy,
            draft_length=None if settings.drafting is None else settings.drafting.draft_length,
            disable_log_stats=True,
        )
        plugins = [self._plugin, BadObserver(self._chance), self._cache]
        return EngineCore(
            num_blocks=settings.num_blocks,
            block_size=settings.block_size,
            num_host_blocks=settings.num_host_blocks,
            kv_windows=settings.kv_windows,
            max_model_len=10**6,
            limits=settings.limits,
            plugins=PluginHost.load(config, extra=plugins),
            max_inflight=settings.max_inflight,
            num_stages=settings.num_stages,
            speculation=None if settings.drafting is None else settings.drafting.limits,
            step_log_size=STEP_LOG_SIZE,
            media=(
                MediaPool(settings.media_bytes, BYTES_PER_TOKEN) if settings.media_bytes else None
            ),
        )

    def _pass_time(self) -> None:
        self._driver.now += self._rng.choice([0.001, 0.01, 0.01, 0.5])
        if self._faults.rng.random() < self._faults.rate / 4:
            jump = self._faults.rng.choice(CLOCK_JUMPS)
            self._went_back |= jump < 0
            self._driver.now += jump
            self._say(f"the clock jumps to {self._driver.now:.3f}")

    def _random_tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(VOCAB) for _ in range(count)]

    # Requests

    def _add(self) -> None:
        members = self._make_request(len(self._requests))
        self._say(
            f"add {members[0].request_id}: {members[0].num_prompt_tokens} tokens, "
            f"max_tokens {members[0].max_tokens}, n {len(members)}"
        )
        try:
            self._driver.queue(members)
        except RequestFailedError:
            return  # the wild admission raised; nothing may be left of it

    def _make_request(self, number: int) -> list[Request]:
        rng = self._rng
        longest = self.settings.longest
        caches = self.settings.limits.enable_prefix_caching
        stem = rng.choice(self._stems)
        prompt = stem[: rng.randint(1, len(stem))] + self._random_tokens(rng.randint(0, 4))
        prompt = prompt[: max(1, longest - 1)]
        media = self._draw_media(stem, prompt)
        max_tokens = rng.randint(1, min(40, longest - len(prompt) + 1))
        n = rng.choice([1, 1, 1, 1, 3])
        group = PromptGroup() if n > 1 else None
        # Without caching, only the siblings of one request share blocks.
        root = hash_root("m", rng.choice(["", "salt"]), "" if caches else str(number))
        priority = rng.choice([0, 0, 1])
        deadline = self._driver.now + rng.random() * 5 if rng.random() < 0.1 else None
        self._curse(number, n, len(prompt), max_tokens)
        return [
            Request(
                request_id=f"{number}/{index}",
                prompt_token_ids=tuple(prompt),
                sampling_params=SamplingParams(n=n),
                max_tokens=max_tokens,
                arrival_time=self._driver.now,
                seed=number * 8 + index,
                options=RequestOptions(priority=priority),
                deadline=deadline,
                cache_root=root,
                publishes=caches or n > 1,
                group=group,
                eos_token_ids=self._draw_stop(
                    with_rows(prompt, media), max_tokens, number * 8 + index
                ),
                media=media,
            )
            for index in range(n)
        ]

    def _draw_places(self, stem: list[int]) -> list[MediaItem]:
        """Put pictures into a stem, and placeholders where they stand."""
        found: list[MediaItem] = []
        end, rng = 0, self._pictures
        while self.settings.pictures and end < len(stem) and rng.random() < 0.8:
            item = rng.choice(self.settings.pictures).at(end + rng.randint(0, 4))
            end = item.end
            if end <= len(stem):
                stem[item.start : end] = [PLACEHOLDER] * item.num_tokens
                found.append(item)
        return found

    def _draw_media(self, stem: list[int], prompt: list[int]) -> tuple[MediaItem, ...]:
        """The pictures that stand whole in a prompt; sometimes another one of the same size. A part
        of a picture is text."""
        if not self.settings.pictures:
            return ()
        [places] = [
            found for one, found in zip(self._stems, self._places, strict=True) if one is stem
        ]
        whole = [item for item in places if item.end <= len(prompt)]
        return tuple(self._swapped(item) for item in whole)

    def _swapped(self, item: MediaItem) -> MediaItem:
        if self._pictures.random() < 0.7:
            return item
        same = [one for one in self.settings.pictures if one.num_tokens == item.num_tokens]
        return self._pictures.choice(same).at(item.start)

    def _curse(self, number: int, n: int, num_prompt_tokens: int, max_tokens: int) -> None:
        for index in range(n):
            if self._curses.random() < 5 * self.settings.fault_rate:
                last = num_prompt_tokens + max_tokens - 1
                self._cursed[f"{number}/{index}"] = self._curses.randint(0, last)

    def _draw_stop(self, prompt: list[int], max_tokens: int, seed: int) -> tuple[int, ...]:
        """Sometimes a token that the request will sample, as its stop token."""
        if self._stops.random() < 0.7:
            return ()
        return (self._stops.choice(self._expected(prompt, max_tokens, seed)),)

    def _expected(self, prompt: Sequence[int], num_tokens: int, seed: int) -> list[int]:
        return expected_tokens(prompt, num_tokens, seed, VOCAB, self.settings.kv_windows)

    def _disturb(self) -> None:
        """Abort a request, or end it as if the detokenizer had found a stop string."""
        name = self._rng.choice(list(self._requests))
        tokens = self._tokens[name]
        if tokens and self._rng.random() < 0.5:
            kept = self._rng.randint(1, len(tokens))
            self._say(f"stop {name} after {kept} tokens")
            if name not in self._reasons:
                del tokens[kept:]
            self._core.finish(name, FinishReason.STOP, self._driver.now, num_tokens=kept)
        else:
            self._say(f"abort {name}")
            self._core.abort(name, self._driver.now)
        self._driver.check()

    # Steps

    def _turn(self) -> None:
        plan = self._driver.plan()
        if plan is not None:
            self._say("plan {}", plan)
        self._executor.advance()
        if not self._driver.open:
            assert plan is None
            idle_on_purpose = self._core.wake_at is not None
            assert not self._core.has_work or idle_on_purpose, "work, room, and nothing was planned"
            return
        oldest = self._driver.pending[0]
        assert isinstance(oldest, Journey)
        if oldest.has_arrived:
            self._finish(oldest.plan, oldest.fate)

    def _choose_fate(self, plan: StepPlan, computed: Sequence[Grant]) -> Fate:
        rng, rate = self._faults.rng, self._faults.rate
        if rng.random() < rate or any(map(self._is_fatal, computed)):
            return Fate(fails_at=rng.randrange(self.settings.num_stages))
        return Fate(is_lost=rng.random() < rate / 2)

    def _finish(self, plan: StepPlan, fate: Fate) -> None:
        self._check_plan(plan)
        faults = self._faults
        if faults.rng.random() < faults.rate:
            self._driver.now += SLOW_STEP
        if fate != Fate():
            self._note_failure(plan, fate)
        updates = self._driver.commit(self._amend)
        self._say("step {} done: {}", plan.step_id, updates)

    def _note_failure(self, plan: StepPlan, fate: Fate) -> None:
        self._say(f"step {plan.step_id}: {fate}")
        self._num_failed_steps += 1
        self._num_lost_results += fate.is_lost
        names = [grant.engine_id for grant in plan.grants]
        counting = [name for name in names if not self._requests[name].num_stale_plans]
        if len(counting) == 1:
            self._may_fail.update(counting)

    def _is_fatal(self, grant: Grant) -> bool:
        position = self._cursed.get(grant.engine_id)
        return position is not None and grant.start <= position < grant.start + grant.num_tokens

    def _amend(self, plan: StepPlan, result: StepResult) -> StepResult:
        result = self._with_failures(plan, result)
        self._count_drafts(plan, result)
        return result

    def _count_drafts(self, plan: StepPlan, result: StepResult) -> None:
        failed = {failure.engine_id for failure in result.failures}
        for grant, token_ids in zip(plan.grants, result.token_ids, strict=True):
            name, drafted = grant.engine_id, grant.num_draft_tokens
            if drafted and name not in self._reasons and name not in failed:
                before, accepted = self._drafted.get(name, (0, 0))
                self._drafted[name] = before + drafted, accepted + len(token_ids) - 1

    def _with_failures(self, plan: StepPlan, result: StepResult) -> StepResult:
        faults = self._faults
        failures = tuple(
            RequestFailure(engine_id=grant.engine_id, message="NaN")
            for grant in plan.grants
            if faults.rng.random() < faults.rate / 4
        )
        self._may_fail |= {failure.engine_id for failure in failures}
        return replace(result, failures=failures)

    # Checks

    def _check_plan(self, plan: StepPlan) -> None:
        limits = self.settings.limits
        assert 0 < plan.num_tokens <= limits.max_num_batched_tokens, "the budget was not kept"
        assert len(plan.grants) <= limits.max_num_seqs, "more sequences than allowed"
        if plan.media is not None and len(plan.media.encode) > 1:
            costs = {one.digest: one.cost for one in self.settings.pictures}
            cost = sum(costs[digest] for digest in plan.media.encode)
            assert plan.num_tokens + cost <= limits.max_num_batched_tokens, (
                "the budget was not kept"
            )
        assert len({grant.engine_id for grant in plan.grants}) == len(plan.grants), (
            "a request has two grants in one step"
        )
        for grant in plan.grants:
            self._num_passed_grants += any(grant.num_passed_blocks)
            assert grant.engine_id in self._requests, "a refused request is served"
            request = self._requests[grant.engine_id]
            most = request.num_prompt_tokens + request.max_tokens
            assert grant.start + grant.num_tokens < most, "a grant computes more than is generated"
            self._check_spans(request, grant)
            drafted = grant.max_draft_tokens + bool(grant.max_draft_tokens)
            assert grant.start + grant.num_tokens + drafted < most, "drafts exceed max_tokens"

    def _check_spans(self, request: Request, grant: Grant) -> None:
        """No grant begins or ends inside a span. Its start is the end of what was found in the
        cache, swapped in, or computed."""
        end = grant.start + grant.num_tokens
        for item in request.media:
            if item.is_whole:
                assert not item.start < grant.start < item.end, "a grant begins inside a span"
                assert not item.start < end < item.end, "a grant ends inside a span"
                self._num_spans += grant.start <= item.start and item.end <= end

    def _check_end(self) -> None:
        core = self._core
        assert self._reasons.keys() == self._requests.keys(), "a request did not end"
        assert core.pool.num_held == core.host_pool.num_held == 0, "a block is still held"
        for name, request in self._requests.items():
            got = self._tokens[name]
            prompt = with_rows(request.prompt_token_ids, request.media)
            right = self._expected(prompt, len(got), request.seed)
            assert got == right, f"{name} got wrong tokens"
            drafted = request.num_draft_tokens, request.num_accepted_tokens
            assert drafted == self._drafted.get(name, (0, 0)), f"{name}: wrong counts of drafts"
            assert len(got) <= request.max_tokens
            assert not set(request.eos_token_ids) & set(got[:-1]), (
                f"{name} did not end at its stop token"
            )
            if self._reasons[name] is FinishReason.ERROR:
                assert name in self._may_fail, f"{name} ended for the fault of another request"
            if self._reasons[name] is FinishReason.LENGTH:
                assert len(got) == request.max_tokens, f"{name} ended too early"
                assert got[-1] not in request.eos_token_ids
            self._check_explanation(request)
            if self._reasons[name] is FinishReason.STOP:
                assert request.num_generated_tokens == len(got), "tokens after the stop are counted"
        self._check_cache()

    def _check_cache(self) -> None:
        """The events of the prefix cache tell of the same blocks as the pool has."""
        pool, told = self._core.pool, self._cache.blocks
        caches = self.settings.limits.enable_prefix_caching
        num_blocks = len(pool.prefix_cache_keys) if caches else 0
        assert len(told) == num_blocks, "events and prefix cache differ"
        for one in told.values():
            assert pool.find(one.block_hash, one.token_ids, one.group) is not None
            parent = one.parent_hash
            if parent is not None:
                right = hash_block(parent, one.token_ids, one.media)
                assert one.block_hash == right, "a wrong parent"

    def _check_explanation(self, request: Request) -> None:
        assert self._core.log is not None and request.finished_time is not None
        [found] = self._core.log.explain(request.engine_id, self._driver.now)
        assert found.finish_reason == request.finish_reason
        if not self._went_back:
            latency = request.finished_time - request.arrival_time
            parts = sum(seconds for _, seconds in found.causes)
            assert abs(parts - latency) < 0.001, (
                f"{request.engine_id}: its parts add up to {parts}, and it took {latency}"
            )
        assert all(seconds >= 0 for _, seconds in found.causes), f"{found}: a part is negative"

    def _outcome(self, num_turns: int) -> Outcome:
        return Outcome(
            num_seeds=1,
            num_requests=len(self._requests),
            num_tokens=sum(map(len, self._tokens.values())),
            num_turns=num_turns,
            num_preemptions=self._core.total_preemptions,
            num_swaps=self._plugin.num_swaps,
            num_passed_grants=self._num_passed_grants,
            num_hit_tokens=sum(r.num_cached_tokens for r in self._requests.values()),
            num_failed_steps=self._num_failed_steps,
            num_lost_results=self._num_lost_results,
            num_overtakings=self._executor.num_overtakings,
            num_plugin_failures=self._plugin.num_failures,
            num_draft_tokens=sum(r.num_draft_tokens for r in self._requests.values()),
            num_accepted_tokens=sum(r.num_accepted_tokens for r in self._requests.values()),
            num_item_queries=self._cache.num_item_queries,
            num_item_hits=self._cache.num_item_hits,
            num_spans=self._num_spans,
        )

    def _say(self, line: str, *details: object) -> None:
        """Write a line to the trace, if there is one; only then is it formatted with `details`."""
        if self._trace is not None:
            self._trace(f"{self._driver.now:.3f} {line.format(*details) if details else line}")
