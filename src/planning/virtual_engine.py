"""One engine in virtual time: the real state machine and plugins, without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ..core.config import EngineConfig
from ..core.contract.events import PluginFailed, Preempted, Started, StepDone
from ..core.contract.hookspecs import hookimpl
from ..core.engine.committing import RequestUpdate
from ..core.engine.request import Request
from ..core.errors import (
    InvalidRequestError,
    OverloadedError,
    RateLimitedError,
    RequestFailedError,
)
from ..core.host.plugin_host import PluginHost
from ..core.plan import StepPlan, StepResult
from ..core.requests.request_options import RequestOptions
from ..core.requests.sampling_params import SamplingParams
from ..core.shell.checking import CheckedRequest, check_ids
from ..core.shell.new_core import fit_max_model_len, make_core
from ..core.shell.new_requests import make_requests
from ..core.shell.steps.loop import RETRY_SECONDS
from .step_time import StepTimes
from .timed_executor import TOKEN, TimedExecutor, size_kv_cache
from .workload import PlannedRequest

REFUSALS = {
    InvalidRequestError: "never fits",
    OverloadedError: "overloaded",
    RateLimitedError: "rate limited",
    RequestFailedError: "admission failed",
}
"""Short reasons of the errors with which an engine refuses a request."""
ANY_ID = 1 << 63
"""A vocabulary for prompts that are not computed: their ids only say which of them are equal."""


class Watch:
    """An observer that counts the events of an engine, or of several."""

    def __init__(self, examples: dict[str, str]) -> None:
        """`examples`: gets the first error message of each plugin's failure."""
        self._examples = examples
        self.preemptions: Counter[str] = Counter({"recompute": 0, "swap": 0})
        self.num_fallbacks = 0
        self.num_queries = 0
        self.num_hits = 0
        self.num_steps = 0
        self.failures: Counter[str] = Counter()

    @hookimpl
    def on_preempted(self, event: Preempted) -> None:
        self.preemptions[event.mode] += 1
        self.num_fallbacks += event.fell_back

    @hookimpl
    def on_step(self, event: StepDone) -> None:
        self.num_steps += 1
        self.num_queries += event.prefix_cache_queries
        self.num_hits += event.prefix_cache_hits

    @hookimpl
    def on_plugin_failed(self, event: PluginFailed) -> None:
        where = f"{event.plugin} in {event.hook}"
        self.failures[where] += 1
        self._examples.setdefault(where, event.error)


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step that the device computes."""

    plan: StepPlan
    result: StepResult
    end: float
    """The time at which it is committed, in seconds."""


@dataclass(frozen=True, slots=True)
class Jump:
    """Consecutive steps that only decode the same requests. See SteadyDecoding."""

    begin: float
    ends: Sequence[float]
    """The time of each commit, in seconds."""


class VirtualEngine:
    """Drives EngineCore and PluginHost as the engine's own loop does. Its owner keeps the time.

    Plugins are called as in a real engine, except for `lifespan` and `before_admit`.
    """

    def __init__(self, config: EngineConfig, times: StepTimes, watch: Watch) -> None:
        """Raises ConfigError or PluginError for settings that cannot work."""
        self._config = config
        self.plugins = PluginHost.load(config, extra=[watch], is_simulated=True)
        self.info = size_kv_cache(times.model, config, swaps=self.plugins.uses_swap)
        self._executor = TimedExecutor(self.info, times.step_time)
        self.max_model_len = fit_max_model_len(config, self.info)
        own = replace(config, step_log_size=0)  # hooks take real time, and steps do not
        self.core = make_core(own, self.info, self.plugins, self.max_model_len)
        self.plugins.emit(
            Started(info=self.info, model_name=self.info.name, max_model_len=self.max_model_len)
        )

    # Requests

    def check(self, planned: PlannedRequest) -> CheckedRequest:
        """Check a request as a server does. Raises InvalidRequestError."""
        # Policies are compared on one workload, so a policy without priorities ignores them.
        priority = planned.priority if self.plugins.order.uses_priority else 0
        return check_ids(
            planned.prompt_token_ids,
            SamplingParams(max_tokens=planned.max_tokens, temperature=0.0, ignore_eos=True),
            RequestOptions(
                priority=priority, cache_salt=planned.cache_salt, session_id=planned.session_id
            ),
            vocab_size=ANY_ID,
            max_model_len=self.max_model_len,
        )

    def add(self, checked: CheckedRequest, request_id: str, arrival: float, now: float) -> str:
        """Queue a request that arrived at the server at `arrival`, and return its id in updates.

        Raises OverloadedError, RateLimitedError, RequestFailedError or InvalidRequestError.
        """
        requests: list[Request] = make_requests(
            checked,
            request_id=request_id,
            seed=0,
            arrival_time=arrival,
            info=self.info,
            config=self._config,
        )
        self.core.add(requests, now)
        return requests[0].engine_id

    # Steps

    def launch(self, now: float) -> tuple[OpenStep | None, Sequence[RequestUpdate]]:
        """Begin the next step, if there is one now. Also returns the requests that ended without a
        step."""
        plan = self.core.plan(now)
        updates = self.core.take_updates()
        if plan is None:
            return None, updates
        result = self._executor.run(plan)
        return OpenStep(plan, result, now + self._executor.step_seconds), updates

    def jump(self, now: float) -> Jump | None:
        """The next steps, if they only decode the same requests. None: `launch` the next step. The
        state of the engine does not change before `land`."""
        steady = self.core.steady
        if steady is None or (num_steps := steady.num_steps()) < 2:
            return None
        seconds = self._executor.decode_seconds(
            self.core.num_running, steady.num_computed_tokens, num_steps
        )
        return Jump(now, tuple(accumulate(seconds, initial=now))[1:])

    def land(self, jump: Jump, num_steps: int) -> None:
        """End the first steps of a jump. Each running request gets one token per step."""
        if num_steps:
            assert self.core.steady is not None
            self.core.steady.decode(TOKEN, jump.begin, jump.ends[:num_steps])

    def commit(self, step: OpenStep) -> list[RequestUpdate]:
        """End a step at its end, and return what its requests got."""
        return self.core.commit(step.plan, step.result, step.end)

    def next_turn(self, now: float) -> float | None:
        """The time at which the scheduler wants to be called again; None without requests."""
        if not self.core.has_work:
            return None
        wake_at = self.core.wake_at
        return now + RETRY_SECONDS if wake_at is None else wake_at
