"""The contract with plugins: every hook, in the order in which the engine reaches it.

Each docstring states *when* the engine calls the hook, what the hook is *given*, what it *may
answer*, the *default*, what happens *on error*, and its *cost*. An implementation may take fewer
arguments than the hook offers. See docs/hooks.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import pluggy

from .client import EngineClient, Load
from .events import (
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

if TYPE_CHECKING:
    from .policy import Arrival, PreemptionCandidate, Refusal, RequestView, StepView, Victim
    from .providers.speculation import Draft, ProposalBatch
    from .registry import Registry

HOOK_API = 1
"""Version of this contract. Additions keep it; removals and changes of meaning raise it."""

PROJECT = "tokenmill"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Decorator of a plugin's hooks: `@hookimpl`, or `@hookimpl(tryfirst=True)` as in pluggy."""


class HookSpecs:
    """All hooks of HOOK_API 1.

    Hooks run in the engine's process, on the engine thread, which plans and commits steps. Only
    `propose` runs elsewhere: on the device thread of a worker. Hooks on different threads must not
    share state.
    """

    @hookspec
    def register(self, registry: Registry) -> None:
        """Offer providers: names, factories, options.

        When: once per enabled plugin, before anything is built. Given: the registry, whose methods
        take the offers. May answer: nothing. Default: no providers.
        On error: the engine does not start, and the error names the plugin. Cost: none at run time.
        """

    @hookspec
    def lifespan(self, engine: EngineClient) -> AbstractAsyncContextManager[None] | None:
        """Run code that may wait: open connections, start tasks, and end them.

        When: entered after the engine is ready, left when it closes. Given: the engine.
        May answer: an async context manager. Default: none. On error: the engine does not start.
        Cost: none at run time.
        """

    @hookspec
    def on_started(self, event: Started) -> None:
        """Observe: the engine is ready. Called once. On error: contained; cut off after three."""

    @hookspec
    def before_admit(self, arrival: Arrival) -> Awaitable[None] | None:
        """Ask other machines for what `admit` needs to know about a request.

        When: on arrival, once per prompt, before `admit`. Given: the arrival, with the tokens of
        the prompt, `max_tokens`, the number of choices and the sender. May answer: None, or an
        awaitable. The engine awaits it before it calls `admit`; meanwhile, steps and other requests
        go on. If its sender leaves, or the engine closes, the awaitable is cancelled, and `admit`
        is not called. Default: None. On error, or if the awaitable takes longer than 5 seconds:
        that request fails. Cost: about 1 µs per request, and the wait.
        """

    @hookspec(firstresult=True)
    def admit(self, request: RequestView, load: Load) -> Refusal | None:
        """Refuse a request before it queues.

        When: on arrival, once per choice of a prompt, after the engine's own limits. If one choice
        is refused, none is queued. Given: the request, with the tokens of its prompt, their number
        and its `max_tokens`, and the load.
        May answer: None to admit the request, or a Refusal with reason and retry_after. Enabled
        implementations are called one after the other, until one refuses. Default: admitted.
        On error: that request fails. Cost: about 1.5 µs per request.
        """

    @hookspec
    def on_admitted(self, event: Admitted) -> None:
        """Observe: requests were queued. On error: contained; cut off after three."""

    @hookspec
    def on_refused(self, event: Refused) -> None:
        """Observe: a request was not queued. On error: contained; cut off after three."""

    @hookspec(firstresult=True)
    def schedule(self, step: StepView) -> None:
        """Decide how many tokens each request computes in this step.

        When: once per step. Given: the step, with `running`, `waiting` and the token budget. Call
        `step.schedule(request, max_tokens=None)` in the order of your choice. It returns the number
        of tokens that it granted: more than `max_tokens` if an image comes first that one step must
        compute whole. May answer: nothing. Default: the scheduler that plugins.toml chooses. On
        error: the engine discards all grants of the step, and the built-in policy decides this
        step; after repeated errors it decides all further steps. Cost: per step.
        """

    @hookspec(firstresult=True)
    def preempt(
        self, step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
    ) -> Victim | None:
        """Choose the request that gives up its KV blocks.

        When: inside `step.schedule`, when no KV block is free. Given: `needy`, the request that
        needs blocks, and `candidates`, the requests that may give up their blocks, most senior
        first. A candidate is junior to `needy` and has no grant in this step, or it is `needy`
        itself. May answer: a Victim, which is one candidate and a mode; None lets `needy` wait.
        Default: the preemption mode that plugins.toml chooses. On error: the last candidate is
        recomputed. Cost: per preemption.
        """

    @hookspec
    def on_preempted(self, event: Preempted) -> None:
        """Observe: a request was preempted. On error: contained; cut off after three."""

    @hookspec
    def on_planned(self, event: Planned) -> None:
        """Observe: a plan was sent to the device. On error: contained; cut off after three."""

    @hookspec(firstresult=True)
    def propose(self, batch: ProposalBatch) -> Sequence[Draft] | None:
        """Propose draft tokens for the model to verify.

        A wrong draft costs time but never changes the output.

        When: after sampling, on the device thread, if a request may speculate. Given: the requests
        with their known tokens and maximum draft lengths, the hidden states if the method needs
        them, and the ids of the requests that started and ended since the last call.
        May answer: one Draft per request, in order; an empty Draft proposes nothing. Default: the
        speculative method that plugins.toml chooses, which is none. On error: no drafts in this
        step. The same holds for an answer that is too long or too short, or that has tokens outside
        the vocabulary. After repeated errors there are no more drafts. Cost: per step; the device
        waits for it.
        """

    @hookspec
    def on_prefix_cache_changed(self, event: PrefixCacheChanged) -> None:
        """Observe: a step or a reset changed the prefix cache. The changes of a step are reported
        before its end. Without prefix caching it is never called. On error: contained; cut off
        after three."""

    @hookspec
    def on_step(self, event: StepDone) -> None:
        """Observe: a step was committed. On error: contained; cut off after three."""

    @hookspec
    def on_finished(self, event: Finished) -> None:
        """Observe: requests ended. On error: contained; cut off after three."""

    @hookspec
    def on_plugin_failed(self, event: PluginFailed) -> None:
        """Observe: a plugin raised an exception. On error: contained; cut off after three."""

    @hookspec
    def render_metrics(self) -> bytes | None:
        """Return metrics of this plugin.

        When: on GET /metrics. May answer: text in Prometheus's exposition format, as bytes; the
        engine joins the answers of all observers. On error: contained; cut off after three.
        Cost: per scrape.
        """

    @hookspec
    def on_stopping(self, event: Stopping) -> None:
        """Observe: the engine is closing. Called once. On error: contained."""
