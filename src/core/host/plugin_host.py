"""The plugins of one engine behind typed methods, so that the engine need not know pluggy."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import cached_property
from typing import Any, Self

import pluggy

from ..config import EngineConfig
from ..contract.choice import Choice
from ..contract.client import EngineClient, Load
from ..contract.events import (
    Admitted,
    Finished,
    Planned,
    PluginFailed,
    Preempted,
    PrefixCacheChanged,
    Refused,
    Started,
    StepDone,
    Stopping,
)
from ..contract.plugin_info import HookStats, PluginInfo, Source, add_stats
from ..contract.policy import (
    Arrival,
    PreemptionCandidate,
    Refusal,
    RequestView,
    SchedulingPolicy,
    StepView,
    Victim,
)
from ..contract.providers.deciders import last_come
from ..contract.providers.draft_length import DraftLengthPolicy
from ..contract.providers.speculation import SpeculationLimits
from ..contract.registry import ONLY_REPLICA, Registry, Replica, label
from ..contract.start_calls import START_CALLS
from ..errors import (
    CONTAINED,
    CONTAINED_WHILE_WAITING,
    PluginError,
    RequestFailedError,
    TokenmillError,
    describe,
)
from ..kinds import DRAFT_LENGTH, KINDS, SCHEDULING_POLICY, SLOTS
from ..log import get_logger
from ..members import DECODES_ALL, PROPOSES
from ..requests.sampling_params import SamplingParams
from .building import BuiltPlugins, build_logits_processors, build_plugins
from .calling.direct_policies import AnyRequest, GuardedDraftLength, WaitingOrder
from .calling.failure_log import FailureLog
from .calling.guard import ADMITS, DECIDES, FAILED, OBSERVES, Guard, Rule, make_guards
from .calling.hook_callers import Decision, Observers
from .calling.preparing import Preparations
from .calling.proposal_hook import ProposalHook
from .choice import SPECULATION, chosen_names
from .discovery import OWN_DISTRIBUTION
from .logits_processors import LogitsProcessors, ProcessorUse
from .metrics.joined import JoinedMetrics

EVENTS: Mapping[type, str] = {
    Started: "on_started",
    Admitted: "on_admitted",
    Refused: "on_refused",
    Preempted: "on_preempted",
    Planned: "on_planned",
    PrefixCacheChanged: "on_prefix_cache_changed",
    StepDone: "on_step",
    Finished: "on_finished",
    PluginFailed: "on_plugin_failed",
    Stopping: "on_stopping",
}
PREEMPTION_MODES = ("recompute", "swap")
_log = get_logger("plugins")


class PluginHost:
    """Calls the chosen providers and the observers, and contains their failures.

    One host belongs to one engine, and is called from one thread at a time.
    """

    def __init__(self, built: BuiltPlugins) -> None:
        self._built = built
        self._log = FailureLog(self.emit)
        self.names: Mapping[str, str] = chosen_names(built.choices)
        """The chosen provider of every slot: {"scheduler": "chunked", ...}."""
        self.order: SchedulingPolicy = built.order
        """The chosen scheduling policy itself. Use `sort_waiting` for its key, which may fail."""
        self._waiting_order = WaitingOrder(
            self.order, self._source(SCHEDULING_POLICY.name), self._log
        )
        self._draft_length = GuardedDraftLength(
            built.draft_length, self._source(DRAFT_LENGTH.name), self._log
        )
        self.draft_length: DraftLengthPolicy = self._draft_length
        """The chosen draft length policy. Its methods never raise."""
        self._schedule = self._decision("schedule", DECIDES)
        self.decodes_all = DECODES_ALL.of(built.scheduler) and len(self._schedule.guards) == 1
        """See members.DECODES_ALL. False if a plugin wraps `schedule`."""
        self._preempt = self._decision("preempt", DECIDES, check=_check_victim)
        self._before_admit = Preparations(self._make_guards("before_admit", ADMITS))
        self.prepares = bool(self._before_admit.guards)
        """Whether any plugin wants to know of a request before `admit`."""
        self._admit = self._decision("admit", ADMITS, wrapper_rule=ADMITS, check=_check_refusal)
        self._events = {event: self._observers(hook) for event, hook in EVENTS.items()}
        self._metrics = self._observers("render_metrics")
        self._logits_processors: LogitsProcessors | None = None
        self.speculator: ProposalHook | None = self._make_speculator()
        """Proposes draft tokens. Call its `propose` on the device thread. None: no drafts."""
        self._guards = (
            *self._schedule.guards,
            self._waiting_order.guard,
            *self._draft_length.guards,
            *self._preempt.guards,
            *(self.speculator.guards if self.speculator else ()),
            *self._before_admit.guards,
            *self._admit.guards,
            *(guard for observers in self._events.values() for guard in observers.guards),
            *self._metrics.guards,
        )
        self._delaying = [guard for guard in self._guards if guard.is_on_engine_thread]

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        *,
        extra: Iterable[object] = (),
        watches: bool = True,
        replica: Replica = ONLY_REPLICA,
        is_simulated: bool = False,
    ) -> Self:
        """Load and build the plugins that the configuration and plugins.toml select.

        `extra` are modules or objects with hooks, from the embedding program. `watches`: also build
        observers and admissions, which a process that only computes does not need. `replica`:
        which of the server's engines this is. `is_simulated`: see PluginContext. Raises PluginError
        or ConfigError with a one-line message.
        """
        built = build_plugins(
            config, extra, watches=watches, replica=replica, is_simulated=is_simulated
        )
        return cls(built)

    @property
    def registry(self) -> Registry:
        """The registry. The executor builds the providers of slots that compute from it."""
        return self._built.plugins.registry

    def choice(self, slot: str) -> Choice:
        """The choice of flags and plugins.toml for a slot."""
        return self._built.choices[slot]

    @property
    def logits_processors(self) -> LogitsProcessors:
        """The logits processors of the enabled plugins. They need torch, so they are built on first
        use. Raises PluginError."""
        if self._logits_processors is None:
            found = build_logits_processors(self._built.plugins)
            self._logits_processors = LogitsProcessors(found, self._log)
        return self._logits_processors

    @property
    def guards(self) -> tuple[Guard, ...]:
        """The guards of all hooks of all plugins."""
        processors = self._logits_processors
        return (*self._guards, *(processors.guards if processors is not None else ()))

    def processors_of(self, params: SamplingParams) -> ProcessorUse:
        """The logits processors that a request uses. Raises what LogitsProcessors.used_by does."""
        is_built = self._logits_processors is not None  # not in an engine that computes nothing
        if params.extra_args or is_built:
            return self.logits_processors.used_by(params)
        return ProcessorUse()

    @property
    def speculation_limits(self) -> SpeculationLimits | None:
        """The limits on drafts, final once the model is loaded. None: no speculation."""
        return self.speculator.limits if self.speculator else None

    @property
    def uses_swap(self) -> bool:
        """Whether the chosen preemption mode may swap, which needs host memory."""
        return "swap" in self._built.preemption_modes

    def schedule(self, step: StepView) -> bool:
        """Let the scheduler decide a step. False: it failed, and the step must be dropped."""
        return self._schedule.ask(step) is not FAILED

    def reject_schedule(self, complaint: str) -> None:
        """Count the last `schedule` as a failure, for example because it granted nothing."""
        self._schedule.reject(complaint)

    def sort_waiting(self, requests: Iterable[AnyRequest], now: float) -> list[AnyRequest]:
        """Waiting requests in the order of the scheduling policy, or by arrival if it fails."""
        return self._waiting_order.sort(requests, now)

    def preempt(
        self,
        step: StepView,
        needy: RequestView,
        candidates: tuple[PreemptionCandidate, ...],
    ) -> Victim | None:
        """Choose one of the candidates to give up its blocks. None lets `needy` wait."""
        answer = self._preempt.ask(step, needy, candidates)
        victim: Victim | None = last_come(candidates) if answer is FAILED else answer
        return victim

    def flush(self) -> None:
        """Log failures of the device thread, and report them to observers. Called in commits."""
        if self.speculator is not None:
            self.speculator.flush()
        if self._logits_processors is not None:
            self._logits_processors.flush()

    async def before_admit(self, arrival: Arrival) -> None:
        """Let plugins ask other machines about a request. Raises RequestFailedError if one fails.

        A failing plugin is never taken out, as in `admit`.
        """
        await self._before_admit(arrival)

    def admit(self, request: RequestView, load: Load) -> Refusal | None:
        """The first refusal, or None. Raises RequestFailedError if an admission plugin failed.

        A failing admission is never taken out, because then every request would be admitted.
        """
        if not self._admit:
            return None
        answer = self._admit.ask(request, load)
        if answer is FAILED:
            raise RequestFailedError(
                f"the request could not be checked: {self._admit.author.source} failed"
            )
        refusal: Refusal | None = answer
        return refusal

    @property
    def refusing_plugin(self) -> str:
        """The plugin that gave the last answer of `admit`."""
        return self._admit.author.source.plugin

    def observes(self, event: type) -> bool:
        """Whether any observer listens to this event. If not, the engine need not build it."""
        return bool(self._events[event])

    def emit(self, event: object) -> None:
        """Call the observers of this event. Never raises."""
        observers = self._events[type(event)]
        if observers:
            observers(event)

    def render_metrics(self) -> bytes:
        """The joined metrics of all observers that have any, without those that are unreadable."""
        joined = JoinedMetrics()
        for source, metrics in self._built.metrics.items():
            try:
                joined.add(metrics.render())
            except CONTAINED as error:  # the function of a gauge
                self._log.record(source, "metrics", error, "contained")
        for guard, answer in self._metrics():
            if complaint := joined.add(answer):
                self._metrics.reject(guard, complaint)
        return joined.render()

    def lifespans(
        self, engine: EngineClient, limit: float | None = None
    ) -> list[AbstractAsyncContextManager[None]]:
        """Context managers to enter once the engine is ready, and to leave in reverse order.

        Entering one fails after `limit` seconds; None: no limit.
        Raises PluginError that names the plugin, here or when a context manager is entered.
        """
        found: list[AbstractAsyncContextManager[None]] = []
        for implementation in reversed(self._caller("lifespan").get_hookimpls()):
            source = self._built.sources[implementation.plugin_name]
            arguments = (engine,) if implementation.argnames else ()
            try:
                manager: Any = START_CALLS.call(
                    "in 'lifespan' of", source, implementation.function, *arguments
                )
            except CONTAINED as error:
                raise _lifespan_error(source, error) from error
            if manager is not None:
                found.append(self._contained(source, manager, limit))
        return found

    def plugins(self) -> tuple[PluginInfo, ...]:
        """Every plugin, enabled or not, with its providers and its number of failures."""
        return tuple(map(self._log.with_failures, self._infos))

    @cached_property
    def _infos(self) -> tuple[PluginInfo, ...]:
        """The plugins, which do not change after the start. To look up their hooks takes 5 ms."""
        return self._built.plugins.infos(chosen=self.names)

    def computing_objects(self) -> tuple[str, ...]:
        """Descriptions of the embedding program's objects that compute, for an error message.

        Another process cannot rebuild them by name.
        """
        return tuple(
            f"{what} of the object {plugin.name!r} in plugins=[...]"
            for plugin in self._infos
            if plugin.distribution == "-" and plugin.state == "enabled"
            for what in _computing(plugin)
        )

    @cached_property
    def foreign_computing(self) -> tuple[str, ...]:
        """The providers of others that compute here. Their failures are exceptions of a step or of
        the start, so each of them may be the cause."""
        chosen = {id(one) for c in self._built.choices.values() for one in (c.provider, *c.others)}
        return tuple(
            f"{label(one.kind)} {one.name!r} of {one.source}"
            for one in self.registry.providers()
            if one.source.distribution != OWN_DISTRIBUTION
            and KINDS[one.kind].computes
            and (id(one) in chosen or one.kind not in SLOTS)
        )

    @contextmanager
    def naming_computing(self) -> Iterator[None]:
        """Name the providers of others in unexpected exceptions of a `with` block that loads a
        model. Raises PluginError instead of them."""
        try:
            yield
        except TokenmillError:
            raise
        except CONTAINED as error:
            if not self.foreign_computing:
                raise
            _log.error("model_not_loaded", exc_info=error)
            raise PluginError(
                f"{type(error).__name__}: {error}; {' and '.join(self.foreign_computing)} may be "
                "the cause"
            ) from error

    def hook_stats(self) -> tuple[HookStats, ...]:
        """Calls, seconds and failures since the start, per plugin and hook."""
        return add_stats(guard.stats for guard in self.guards)

    @property
    def delaying_hooks(self) -> tuple[str, ...]:
        """The hooks that delay steps, by the names of plugin and hook."""
        return tuple(f"{guard.source.plugin} ({guard.hook})" for guard in self._delaying)

    def seconds_by_hook(self) -> tuple[float, ...]:
        """Seconds of each of these hooks since the start. The step log reads it in every step."""
        return tuple([guard.seconds for guard in self._delaying])

    def _source(self, slot: str) -> Source:
        return self._built.choices[slot].provider.source

    def _decision(self, hook: str, rule: Rule, **more: Any) -> Decision:
        return Decision(self._caller(hook), rule, self._built.sources, self._log, **more)

    def _observers(self, hook: str) -> Observers:
        return Observers(self._make_guards(hook, OBSERVES))

    def _make_guards(self, hook: str, rule: Rule) -> tuple[Guard, ...]:
        return make_guards(self._caller(hook), rule, self._built.sources, self._log)

    def _caller(self, hook: str) -> pluggy.HookCaller:
        caller: pluggy.HookCaller = getattr(self._built.plugins.manager.hook, hook)
        return caller

    def _make_speculator(self) -> ProposalHook | None:
        if not PROPOSES.of(self._built.speculator):
            return None
        return ProposalHook(
            self._built.speculator,
            self._source(SPECULATION),
            self._built.speculation,
            self._built.plugins.manager,
            self._built.sources,
            self._log,
        )

    @asynccontextmanager
    async def _contained(
        self, source: Source, manager: AbstractAsyncContextManager[None], limit: float | None
    ) -> AsyncIterator[None]:
        try:
            with START_CALLS.run("in 'lifespan' of", source, waits=True):
                async with asyncio.timeout(limit):
                    await manager.__aenter__()
        except CONTAINED_WHILE_WAITING as error:
            raise _lifespan_error(source, error) from error
        try:
            yield
        finally:
            try:
                await manager.__aexit__(*sys.exc_info())
            except CONTAINED_WHILE_WAITING as error:
                self._log.record(source, "lifespan", error, "contained")


def _computing(plugin: PluginInfo) -> Iterator[str]:
    """The providers and hooks of a plugin that run where steps are computed."""
    for provider in plugin.provides:
        kind, _, name = provider.partition(":")
        if KINDS[kind].runs == "worker":
            yield f"the {label(kind)} {name!r}"
    if "propose" in plugin.hooks and not any("speculative" in one for one in plugin.provides):
        yield "the wrapper around 'propose'"


def _check_refusal(answer: object, *_: object) -> str | None:
    """The error in an answer of `admit`, or None."""
    if answer is None or isinstance(answer, Refusal):
        return None
    return f"the answer must be None or a Refusal, got {answer!r}"


def _check_victim(
    answer: object,
    step: StepView,
    needy: RequestView,
    candidates: tuple[PreemptionCandidate, ...],
) -> str | None:
    """The error in an answer of `preempt`, or None."""
    if answer is None:
        return None
    if not isinstance(answer, Victim):
        return f"the answer must be None or a Victim, got {answer!r}"
    if not any(answer.request is candidate.request for candidate in candidates):
        return f"chose {answer.request.request_id!r}, which is not among the candidates"
    if answer.mode not in PREEMPTION_MODES:
        return f"unknown mode {answer.mode!r}. Known: {', '.join(PREEMPTION_MODES)}"
    return None


def _lifespan_error(source: Source, error: BaseException) -> PluginError:
    return PluginError(f"{source} failed in 'lifespan': {describe(error)}")
