"""The engine's own plugins pass the suites that a third party's must pass: no private door."""

from __future__ import annotations

import pytest

from tokenmill.core.plugin_discovery import OWN_DISTRIBUTION, find_installed
from tokenmill.testing import (
    ObserverConformance,
    PackageConformance,
    PreemptionConformance,
    SchedulerConformance,
    SchedulingPolicyConformance,
)
from tokenmill.testing.conformance.installed import LoadedPlugin, Subject

OWN = [n for n, p in find_installed().items() if p.source.distribution == OWN_DISTRIBUTION]
SUBJECTS = [subject for name in OWN for subject in LoadedPlugin(name).subjects()]


def of_kind(kind: str) -> list[Subject]:
    return [subject for subject in SUBJECTS if subject.kind == kind]


class TestOwnPackage(PackageConformance):
    @pytest.fixture(params=OWN)
    def plugin_name(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


class TestOwnSchedulers(SchedulerConformance):
    @pytest.fixture(params=of_kind("scheduler"), ids=lambda subject: subject.name)
    def scheduler(self, request: pytest.FixtureRequest) -> object:
        return request.param.make


class TestOwnSchedulingPolicies(SchedulingPolicyConformance):
    @pytest.fixture(params=of_kind("scheduling_policy"), ids=lambda subject: subject.name)
    def scheduling_policy(self, request: pytest.FixtureRequest) -> object:
        return request.param.make


class TestOwnPreemptionModes(PreemptionConformance):
    @pytest.fixture(params=of_kind("preemption_mode"), ids=lambda subject: subject.name)
    def preemption_mode(self, request: pytest.FixtureRequest) -> object:
        return request.param.make


class TestOwnObservers(ObserverConformance):
    @pytest.fixture(params=of_kind("observer"), ids=lambda subject: subject.name)
    def observer(self, request: pytest.FixtureRequest) -> object:
        return request.param.make()


def test_each_of_them_is_put_to_a_suite() -> None:
    names = {subject.name for subject in SUBJECTS}
    assert {"chunked", "prefill-first", "fcfs", "priority", "recompute", "swap"} <= names
    assert {"prometheus", "stats-log", "preemption-log"} <= names
