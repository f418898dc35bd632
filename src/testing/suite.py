"""The suites for an installed plugin, without a line of code:

pytest --pyargs tokenmill.testing.suite --plugin NAME
"""

from __future__ import annotations

from typing import Any

import pytest

from .conformance import (
    AdmissionConformance,
    AttentionConformance,
    DraftLengthConformance,
    ObserverConformance,
    PackageConformance,
    PreemptionConformance,
    SchedulerConformance,
    SchedulingPolicyConformance,
    SpeculatorConformance,
)
from .conformance.installed import Subject


class TestPackage(PackageConformance):
    """What holds for every plugin."""

    @pytest.fixture
    def plugins_file(self, pytestconfig: pytest.Config) -> str | None:
        file: str | None = pytestconfig.getoption("--plugins-file")
        return file


class TestScheduler(SchedulerConformance):
    """Every scheduler that the plugin offers, and its wrapper around `schedule`."""

    kind = "scheduler"

    @pytest.fixture
    def scheduler(self, subject: Subject) -> object:
        return subject.make


class TestSchedulingPolicy(SchedulingPolicyConformance):
    """Every order of the waiting requests."""

    kind = "scheduling_policy"

    @pytest.fixture
    def scheduling_policy(self, subject: Subject) -> object:
        return subject.make


class TestPreemption(PreemptionConformance):
    """Every preemption mode, and the wrapper around `preempt`."""

    kind = "preemption_mode"

    @pytest.fixture
    def preemption_mode(self, subject: Subject) -> object:
        return subject.make


class TestSpeculator(SpeculatorConformance):
    """Every speculative method, and the wrapper around `propose`."""

    kind = "speculative_method"

    @pytest.fixture
    def speculative_method(self, subject: Subject) -> object:
        return subject.make


class TestDraftLength(DraftLengthConformance):
    """Every choice of how many tokens to draft."""

    kind = "draft_length"

    @pytest.fixture
    def draft_length(self, subject: Subject) -> object:
        return subject.make


class TestAdmission(AdmissionConformance):
    """Every doorkeeper, offered or in the plugin itself."""

    kind = "admission"

    @pytest.fixture
    def admission(self, subject: Subject) -> object:
        return _made(subject)


class TestAttention(AttentionConformance):
    """Every attention backend, on the GPU if there is one and the backend takes it."""

    kind = "attention_backend"

    @pytest.fixture
    def attention_backend(self, subject: Subject) -> Any:
        return subject.make()


class TestObserver(ObserverConformance):
    """Every observer, offered or in the plugin itself."""

    kind = "observer"

    @pytest.fixture
    def observer(self, subject: Subject) -> object:
        return _made(subject)


def _made(subject: Subject) -> object:
    """What the factory makes; it may choose to stay out."""
    made = subject.make()
    if made is None:
        pytest.skip(f"{subject.kind} {subject.name!r} stays out with these options")
    return made
