"""A plugin that provides every slot and every hook, and one call of each through a host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tokenmill.core import kinds
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.events import Planned
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.policy import PreemptionCandidate
from tokenmill.core.contract.registry import Registry
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.requests.request_options import NO_OPTIONS

from ..drafting_plugins import batch, propose

ANY = cast(Any, object())
PLANNED = Planned(step_id=1, num_requests=2, num_tokens=3)


class Request:
    request_id = "a"
    arrival_time = 0.0
    options = NO_OPTIONS

    @property
    def view(self) -> Request:
        return self


CANDIDATES = (
    PreemptionCandidate(request=cast(Any, Request()), num_freed_blocks=1, is_needy=False),
)


class Everything:
    """Provides every slot and every hook, and raises in one of them."""

    modes = ("recompute",)
    uses_priority = False

    def __init__(self, hook: str, error: BaseException) -> None:
        self._failing, self._error = hook, error

    def _run(self, hook: str, answer: object = None) -> Any:
        if hook == self._failing:
            raise self._error
        return answer

    @hookimpl
    def register(self, registry: Registry) -> None:
        run = self._run

        class Scheduler:
            @hookimpl
            def schedule(self, step: object) -> object:
                return run("schedule")

        class Mode:
            modes = ("recompute",)

            @hookimpl
            def preempt(self, step: object) -> Any:
                return run("preempt")

        class Method:
            @hookimpl
            def propose(self, batch: object) -> Any:
                return run("propose", [])

        class Order:
            uses_priority = False

            def key(self, request: object, now: float) -> Any:
                return run("scheduling_policy", (0.0,))

        registry.offer(kinds.SCHEDULER, "every", Scheduler)
        registry.offer(kinds.PREEMPTION_MODE, "every", Mode)
        registry.offer(kinds.SPECULATIVE_METHOD, "every", Method)
        registry.offer(kinds.SCHEDULING_POLICY, "every", Order)

    @hookimpl
    def admit(self) -> Any:
        return self._run("admit")

    @hookimpl
    def on_planned(self) -> None:
        self._run("on_planned")

    @hookimpl
    def render_metrics(self) -> Any:
        return self._run("render_metrics")


def load(*plugins: object) -> PluginHost:
    slots = ("scheduler", "preemption_mode", "speculative_method", "scheduling_policy")
    config = EngineConfig.from_options(**dict.fromkeys(slots, "every"))
    return PluginHost.load(config, extra=plugins)


CALLS: dict[str, Callable[[PluginHost], object]] = {
    "schedule": lambda host: host.schedule(ANY),
    "preempt": lambda host: host.preempt(ANY, ANY, CANDIDATES),
    "propose": lambda host: (propose(host, batch([])), host.flush()),
    "scheduling_policy": lambda host: host.sort_waiting([cast(Any, Request())], 0.0),
    "admit": lambda host: host.admit(cast(Any, Request()), ANY),
    "on_planned": lambda host: host.emit(PLANNED),
    "render_metrics": lambda host: host.render_metrics(),
}
