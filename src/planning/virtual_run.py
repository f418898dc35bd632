"""Runs a workload through the real engine in virtual time, without a model."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.config import EngineConfig
from ..core.engine.committing import RequestUpdate
from ..core.errors import InvalidRequestError, OverloadedError, RequestFailedError
from ..core.outputs import FinishReason
from ..testing.quiet_logs import quiet_logs
from .outcome import Outcome, mean_ms, percentile_ms
from .step_time import StepTimes
from .virtual_engine import REFUSALS, VirtualEngine, Watch
from .workload import PlannedRequest


@dataclass(slots=True)
class _Life:
    """One request, as its client sees it."""

    planned: PlannedRequest
    first_token: float | None = None
    last_token: float | None = None


class VirtualRun:
    """Runs one workload on one engine. Time advances only by the duration of a step, or to the next
    arrival."""

    def __init__(
        self, requests: Sequence[PlannedRequest], config: EngineConfig, times: StepTimes
    ) -> None:
        """Raises ConfigError or PluginError for settings that cannot work."""
        self.examples: dict[str, str] = {}
        """The first error message for each reason of a refusal, and each failure of a plugin."""
        self._watch = Watch(self.examples)
        self._engine = VirtualEngine(config, times, self._watch)
        self._coming = deque(requests)
        self._num_requests = len(requests)
        self._now = 0.0
        self.decisions = 0
        """Hash of all decisions so far: which requests were refused, and what each step computed
        when. Two runs of one process with the same hash have never decided differently."""
        self._lives: dict[str, _Life] = {}
        self._refused: Counter[str] = Counter()
        self._ended: Counter[FinishReason] = Counter()
        self._ttfts: list[float] = []
        self._gaps: list[float] = []
        self._tpots: list[float] = []
        self._e2e: list[float] = []
        self._num_input_tokens = 0
        self._num_output_tokens = 0

    def run(self, progress: Callable[[float], None] = lambda fraction: None) -> Outcome:
        """Serve all requests. `progress` is called with the fraction of requests that are done."""
        with quiet_logs():
            while self._coming or self._engine.core.has_work:
                self._let_in(self._now)
                self._turn()
                progress(1 - (len(self._coming) + len(self._lives)) / self._num_requests)
        return self._outcome()

    # Time

    def _turn(self) -> None:
        """Run one step, or advance the time to the next event."""
        step, updates = self._engine.launch(self._now)
        self._note(updates)
        if step is None:
            self._now = self._next_time()
            return
        self._decide(frozenset((grant.engine_id, grant.num_tokens) for grant in step.plan.grants))
        self._let_in(step.end)  # requests that arrive while the device computes
        self._now = step.end
        self._note(self._engine.commit(step))

    def _decide(self, decision: object) -> None:
        self.decisions = hash((self.decisions, self._now, decision))

    def _next_time(self) -> float:
        """The time of the next arrival, or of the scheduler's next turn, whichever is earlier."""
        times = [self._coming[0].at] if self._coming else []
        if (turn := self._engine.next_turn(self._now)) is not None:
            times.append(turn)
        return max(self._now, min(times, default=self._now))

    # Requests

    def _let_in(self, until: float) -> None:
        while self._coming and self._coming[0].at <= until:
            self._add(self._coming.popleft())

    def _add(self, planned: PlannedRequest) -> None:
        number = self._num_requests - len(self._coming)
        try:
            checked = self._engine.check(planned)
            engine_id = self._engine.add(checked, f"request-{number}", planned.at, planned.at)
        except (InvalidRequestError, OverloadedError, RequestFailedError) as error:
            reason = REFUSALS[type(error)]
            self._refused[reason] += 1
            self._decide((number, reason))
            self.examples.setdefault(reason, str(error))
            return
        self._lives[engine_id] = _Life(planned)

    def _note(self, updates: Sequence[RequestUpdate]) -> None:
        for update in updates:
            life = self._lives[update.engine_id]
            if update.token_ids:
                self._note_token(life)
            if update.finish_reason is not None:
                self._note_end(life, update.finish_reason)
                del self._lives[update.engine_id]

    def _note_token(self, life: _Life) -> None:
        self._num_output_tokens += 1
        if life.last_token is None:
            self._ttfts.append(self._now - life.planned.at)
            life.first_token = self._now
        else:
            self._gaps.append(self._now - life.last_token)
        life.last_token = self._now

    def _note_end(self, life: _Life, reason: FinishReason) -> None:
        self._ended[reason] += 1
        if reason is FinishReason.LENGTH:
            self._e2e.append(self._now - life.planned.at)
            self._num_input_tokens += len(life.planned.prompt_token_ids)
            if life.first_token is not None and life.planned.max_tokens > 1:
                after = self._now - life.first_token
                self._tpots.append(after / (life.planned.max_tokens - 1))

    # Result

    def _outcome(self) -> Outcome:
        ttfts, gaps, e2e = sorted(self._ttfts), sorted(self._gaps), sorted(self._e2e)
        watch, duration = self._watch, self._now
        completed = self._ended[FinishReason.LENGTH]
        return Outcome(
            duration=duration,
            completed=completed,
            refused=dict(sorted(self._refused.items())),
            timed_out=self._ended[FinishReason.ABORT],
            failed=self._ended[FinishReason.ERROR],
            total_input_tokens=self._num_input_tokens,
            total_output_tokens=self._num_output_tokens,
            request_throughput=completed / duration if duration else 0.0,
            output_throughput=self._num_output_tokens / duration if duration else 0.0,
            mean_ttft_ms=mean_ms(ttfts),
            median_ttft_ms=percentile_ms(ttfts, 0.5),
            p99_ttft_ms=percentile_ms(ttfts, 0.99),
            p99_tpot_ms=percentile_ms(sorted(self._tpots), 0.99),
            median_itl_ms=percentile_ms(gaps, 0.5),
            p99_itl_ms=percentile_ms(gaps, 0.99),
            max_itl_ms=percentile_ms(gaps, 1.0),
            median_e2el_ms=percentile_ms(e2e, 0.5),
            p99_e2el_ms=percentile_ms(e2e, 0.99),
            num_preemptions=dict(watch.preemptions),
            num_swap_fallbacks=watch.num_fallbacks,
            prefix_cache_queries=watch.num_queries,
            prefix_cache_hits=watch.num_hits,
            prefix_cache_hit_rate=(
                watch.num_hits / watch.num_queries if watch.num_queries else None
            ),
            num_steps=watch.num_steps,
            plugin_failures=dict(sorted(watch.failures.items())),
        )
