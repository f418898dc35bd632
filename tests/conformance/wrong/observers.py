"""Wrong observers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tokenmill.core.contract.events import Finished, Planned, PluginFailed, StepDone
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.testing import ObserverConformance


class TestForgetsThatTimesMayBeMissing(ObserverConformance):
    fails = "test_it_survives_every_event"

    @pytest.fixture
    def observer(self) -> object:
        class Observer:
            total = 0.0

            @hookimpl
            def on_finished(self, event: Finished) -> None:
                if event.requests[0].num_generation_tokens == 0:
                    self.total += event.requests[0].queue_time or event.requests[0].missing  # type: ignore[attr-defined]

        return Observer()


class TestSleeps(ObserverConformance):
    fails = "test_it_never_waits"

    @pytest.fixture
    def observer(self) -> object:
        class Observer:
            @hookimpl
            def on_planned(self, event: Planned) -> None:
                time.sleep(0.003)

        return Observer()


class TestFailsWhenItIsStopped(ObserverConformance):
    fails = "test_it_lives_through_an_engine"

    @pytest.fixture
    def observer(self) -> object:
        class Observer:
            num_steps = 0

            @hookimpl
            @asynccontextmanager
            async def lifespan(self) -> AsyncIterator[None]:
                yield
                raise ZeroDivisionError

            @hookimpl
            def on_step(self, event: StepDone) -> None:
                self.num_steps += 1

        return Observer()


class TestCannotBeStarted(ObserverConformance):
    fails = "test_it_lives_through_an_engine"

    @pytest.fixture
    def observer(self) -> object:
        class Observer:
            @hookimpl
            @asynccontextmanager
            async def lifespan(self) -> AsyncIterator[None]:
                raise ConnectionError
                yield

        return Observer()


class TestMetricsAreNoText(ObserverConformance):
    fails = "test_metrics_are_prometheus_text"

    @pytest.fixture
    def observer(self) -> object:
        class Observer:
            text = b"steps 1\n"

            @hookimpl
            def render_metrics(self) -> bytes:
                return self.text

            @hookimpl
            def on_plugin_failed(self, event: PluginFailed) -> None:
                self.text = b"steps: many\n"

        return Observer()
