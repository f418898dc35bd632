"""The plugins of one engine behind typed methods: the engine calls these and never sees pluggy."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, Self

from ..config import EngineConfig
from ..contract.choice import Choice
from ..contract.client import EngineClient, Load
from ..contract.draft_length import DraftLengthPolicy
from ..contract.events import (
    Admitted,
    Finished,
    Planned,
    PluginFailed,
    Preempted,
    Started,
    StepDone,
    Stopping,
)
from ..contract.fallback import last_come
from ..contract.plugin_info import HookStats, PluginInfo, Source
from ..contract.policy import (
    PreemptionCandidate,
    Refusal,
    RequestView,
    SchedulingPolicy,
    StepView,
    Victim,
)
from ..contract.registry import Registry
from ..contract.speculation import Draft, ProposalBatch, SpeculationLimits
from ..errors import PluginError
from .admission_hook import AdmissionHook
from .building import BuiltPlugins, build_plugins
from .choice import NO_SPECULATION, SPECULATION, chosen_names
from .decision_hook import FAILED, DecisionHook
from .failure_log import FailureLog
from .fan_out import FanOut
from .guarded_draft_length import GuardedDraftLength
from .hook_checks import SLOT_HOOKS
from .proposal_hook import NAME as PROPOSE
from .proposal_hook import ProposalHook
from .waiting_order import AnyRequest, WaitingOrder

__all__ = ["PluginHost", "PluginInfo"]

EVENTS: Mapping[type, str] = {
    Started: "on_started",
    Admitted: "on_admitted",
    Preempted: "on_preempted",
    Planned: "on_planned",
    StepDone: "on_step",
    Finished: "on_finished",
    PluginFailed: "on_plugin_failed",
    Stopping: "on_stopping",
}
PREEMPTION_MODES = ("recompute", "swap")


class PluginHost:
    """Asks the chosen providers and tells the observers; what they do wrong ends here.

    One host belongs to one engine, and is called from one thread at a time.
    """

    def __init__(self, built: BuiltPlugins) -> None:
        self._plugins = built.plugins
        self._sources = built.sources
        self._hook = built.plugins.manager.hook
        self._failures = FailureLog()
        self.names: Mapping[str, str] = chosen_names(built.choices)
        """The chosen provider of every slot: {"scheduler": "chunked", ...}."""
        self._built = built
        self.order: SchedulingPolicy = built.order
        """The chosen scheduling policy itself; `sort_waiting` is the safe way to use its key."""
        self._waiting_order = WaitingOrder(
            self.order, built.choices["scheduling_policy"].provider.source, self._failures
        )
        self.draft_length: DraftLengthPolicy = GuardedDraftLength(
            built.draft_length, built.choices["draft_length"].provider.source, self._failures
        )
        """How many tokens to draft for each request; it never raises."""
        self._decisions = {
            hook: DecisionHook(
                hook,
                built.choices[slot].provider.source,
                built.plugins.manager,
                built.sources,
                self._failures,
            )
            for hook, slot in SLOT_HOOKS.items()
            if hook != PROPOSE
        }
        self._schedule, self._preempt = self._decisions["schedule"], self._decisions["preempt"]
        self._events = {event: self._fan_out(hook) for event, hook in EVENTS.items()}
        self._metrics = self._fan_out("render_metrics")
        self.speculator: ProposalHook | None = self._make_speculator(built)
        """What guesses the next tokens; its `propose` belongs to the device thread. None: nothing
        does."""
        self._admit = AdmissionHook(self._hook.admit, self._sources, self._failures)
        self._failures.emit = self.emit

    @classmethod
    def load(cls, config: EngineConfig, *, extra: Iterable[object] = ()) -> Self:
        """Load the plugins that the configuration and plugins.toml ask for, and build all of them.

        `extra` are modules or objects with hooks, from the embedding program. Raises PluginError
        or ConfigError with one line that says what is wrong, where, and what is known.
        """
        return cls(build_plugins(config, extra))

    @property
    def registry(self) -> Registry:
        """Builds providers of slots that compute; the executor's side asks, when it is ready."""
        return self._plugins.registry

    def choice(self, slot: str) -> Choice:
        """What flags and plugins.toml say about a slot that computes."""
        return self._built.choices[slot]

    @property
    def speculation_limits(self) -> SpeculationLimits | None:
        """How the engine speculates, final once the model is loaded; None: not at all."""
        return self.speculator.limits if self.speculator else None

    @property
    def uses_swap(self) -> bool:
        """Whether the chosen preemption mode may swap, so that host memory is needed."""
        return "swap" in self._built.preemption_modes

    def schedule(self, step: StepView) -> bool:
        """Let the scheduler decide. False: it failed, and the step must be dropped and redone."""
        return self._schedule.ask(step=step) is not FAILED

    def reject_schedule(self, complaint: str) -> None:
        """The last `schedule` was useless, for example granted nothing: it counts as a failure."""
        self._schedule.reject(complaint)

    def sort_waiting(self, requests: Iterable[AnyRequest], now: float) -> list[AnyRequest]:
        """Waiting requests in the order of the scheduling policy; by arrival where that fails."""
        return self._waiting_order.sort(requests, now)

    def preempt(
        self,
        step: StepView,
        needy: RequestView,
        candidates: tuple[PreemptionCandidate, ...],
    ) -> Victim | None:
        """Who gives up its blocks, always one of the candidates; None lets the needy one wait."""
        answer = self._preempt.ask(step=step, needy=needy, candidates=candidates)
        if answer is FAILED:
            return last_come(candidates)
        complaint = _complaint(answer, candidates)
        if complaint is not None:
            self._preempt.reject(complaint)
            return last_come(candidates)
        victim: Victim | None = answer
        return victim

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        """One draft per request, within its bounds, and never an exception. On the device thread."""
        return (
            self.speculator.propose(batch) if self.speculator else [Draft()] * len(batch.requests)
        )

    def flush(self) -> None:
        """Tell logs and observers what happened in `propose`; the engine calls it in each commit."""
        if self.speculator is not None:
            self.speculator.flush()

    def admit(self, request: RequestView, load: Load) -> Refusal | None:
        """The first refusal, or None. Raises RequestFailedError if a doorkeeper failed."""
        return self._admit.ask(request, load)

    def observes(self, event: type) -> bool:
        """Whether anybody listens: an unobserved event need not be built."""
        return bool(self._events[event])

    def emit(self, event: object) -> None:
        """Tell the observers of this event. Never raises."""
        fan_out = self._events[type(event)]
        if fan_out:
            fan_out(event)

    def render_metrics(self) -> bytes:
        """The metrics of all observers that offer some, joined."""
        parts = []
        for listener, text in self._metrics():
            if isinstance(text, bytes):
                parts.append(text if not text or text.endswith(b"\n") else text + b"\n")
            else:
                self._metrics.fail(listener, f"'render_metrics' answers bytes, got {text!r}")
        return b"".join(parts)

    def lifespans(self, engine: EngineClient) -> list[AbstractAsyncContextManager[None]]:
        """What to enter once the engine is ready, and to leave in reverse order.

        Raises PluginError, here or on entering, that names the plugin.
        """
        found: list[AbstractAsyncContextManager[None]] = []
        for implementation in reversed(self._hook.lifespan.get_hookimpls()):
            source = self._sources[implementation.plugin_name]
            arguments = (engine,) if implementation.argnames else ()
            try:
                manager: Any = implementation.function(*arguments)
            except Exception as error:
                raise _lifespan_error(source, error) from error
            if manager is not None:
                found.append(self._contained(source, manager))
        return found

    def plugins(self) -> tuple[PluginInfo, ...]:
        """Every plugin, enabled or not, with what it provides and how often it failed."""
        return tuple(map(self._with_failures, self._plugins.infos(chosen=self.names)))

    def hook_stats(self) -> dict[str, HookStats]:
        """Calls, time and failures of every hook that the engine reached, since the start."""
        hooks: list[DecisionHook | AdmissionHook | FanOut] = [*self._decisions.values()]
        if self.speculator is not None:
            hooks.append(self.speculator.hook)
        hooks += [self._admit, *self._events.values(), self._metrics]
        return {hook.name: replace(hook.stats, slow=hook.stats.slow.copy()) for hook in hooks}

    def _make_speculator(self, built: BuiltPlugins) -> ProposalHook | None:
        if self.names[SPECULATION] == NO_SPECULATION:
            return None
        return ProposalHook(
            built.speculator,
            built.choices[SPECULATION].provider.source,
            built.speculation,
            built.plugins.manager,
            built.sources,
            self._failures,
        )

    def _fan_out(self, hook: str) -> FanOut:
        return FanOut(getattr(self._hook, hook), self._sources, self._failures)

    @asynccontextmanager
    async def _contained(
        self, source: Source, manager: AbstractAsyncContextManager[None]
    ) -> AsyncIterator[None]:
        try:
            await manager.__aenter__()
        except Exception as error:
            raise _lifespan_error(source, error) from error
        try:
            yield
        finally:
            try:
                await manager.__aexit__(*sys.exc_info())
            except Exception as error:
                self._failures.record(source, "lifespan", error, "contained")

    def _with_failures(self, info: PluginInfo) -> PluginInfo:
        info = replace(info, failures=self._failures.of_plugin(info.name))
        taken_out = self._failures.taken_out.get(info.name)
        return replace(info, state="failed", error=taken_out) if taken_out else info


def _complaint(answer: object, candidates: tuple[PreemptionCandidate, ...]) -> str | None:
    """What is wrong with an answer of `preempt`."""
    if answer is None:
        return None
    if not isinstance(answer, Victim):
        return f"answers None or a Victim, got {answer!r}"
    if not any(answer.request is candidate.request for candidate in candidates):
        return f"chose {answer.request.request_id!r}, which is not among the candidates"
    if answer.mode not in PREEMPTION_MODES:
        return f"unknown mode {answer.mode!r}. Known: {', '.join(PREEMPTION_MODES)}"
    return None


def _lifespan_error(source: Source, error: Exception) -> PluginError:
    return PluginError(f"{source} failed in 'lifespan': {type(error).__name__}: {error}")
