"""Wrong observers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tokenmill.core.contract.events import Finished, Planned, PluginFailed, StepDone
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.errors import PluginError
from tokenmill.testing.conformance.policies import observer as suite

from . import fails


@fails(suite.check_it_survives_every_event)
class ForgetsThatTimesMayBeMissing:
    total = 0.0

    @hookimpl
    def on_finished(self, event: Finished) -> None:
        if event.requests[0].num_generation_tokens == 0:
            self.total += event.requests[0].queue_time or event.requests[0].missing  # type: ignore[attr-defined]


@fails(suite.check_it_never_waits)
class Sleeps:
    @hookimpl
    def on_planned(self, event: Planned) -> None:
        time.sleep(0.003)


@fails(suite.check_it_lives_through_an_engine)
class FailsWhenItIsStopped:
    num_steps = 0

    @hookimpl
    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        yield
        raise ZeroDivisionError

    @hookimpl
    def on_step(self, event: StepDone) -> None:
        self.num_steps += 1


@fails(suite.check_it_lives_through_an_engine, raises=PluginError)
class CannotBeStarted:
    @hookimpl
    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        raise ConnectionError
        yield


@fails(suite.check_metrics_are_prometheus_text)
class MetricsAreNoText:
    text = b"steps 1\n"

    @hookimpl
    def render_metrics(self) -> bytes:
        return self.text

    @hookimpl
    def on_plugin_failed(self, event: PluginFailed) -> None:
        self.text = b"steps: many\n"
