"""The conformance suites for an installed plugin. Run them without writing code:

pytest --pyargs tokenmill.testing.suite --plugin NAME
"""

from __future__ import annotations

from typing import Any

import pytest

from .conformance import (
    AdmissionConformance,
    AttentionConformance,
    DraftLengthConformance,
    ExecutorConformance,
    GrammarConformance,
    LinearConformance,
    LogitsProcessorConformance,
    ModelImplConformance,
    ObserverConformance,
    PackageConformance,
    PreemptionConformance,
    ReasoningParserConformance,
    RouterConformance,
    SchedulerConformance,
    SchedulingPolicyConformance,
    SpeculatorConformance,
    ToolCallParserConformance,
    WeightFormatConformance,
)
from .conformance.installed import Subject


class TestPackage(PackageConformance):
    """The tests that apply to every plugin."""

    @pytest.fixture
    def plugins_file(self, pytestconfig: pytest.Config) -> str | None:
        file: str | None = pytestconfig.getoption("--plugins-file")
        return file


class TestScheduler(SchedulerConformance):
    """Tests every scheduler that the plugin offers, and its wrapper around `schedule`."""

    kind = "scheduler"

    @pytest.fixture
    def scheduler(self, subject: Subject) -> object:
        return subject.make


class TestSchedulingPolicy(SchedulingPolicyConformance):
    """Tests every order of waiting requests that the plugin offers."""

    kind = "scheduling_policy"

    @pytest.fixture
    def scheduling_policy(self, subject: Subject) -> object:
        return subject.make


class TestPreemption(PreemptionConformance):
    """Tests every preemption mode, and the wrapper around `preempt`."""

    kind = "preemption_mode"

    @pytest.fixture
    def preemption_mode(self, subject: Subject) -> object:
        return subject.make


class TestSpeculator(SpeculatorConformance):
    """Tests every speculative method, and the wrapper around `propose`."""

    kind = "speculative_method"

    @pytest.fixture
    def speculative_method(self, subject: Subject) -> object:
        return subject.make


class TestDraftLength(DraftLengthConformance):
    """Tests every draft length policy."""

    kind = "draft_length"

    @pytest.fixture
    def draft_length(self, subject: Subject) -> object:
        return subject.make


class TestAdmission(AdmissionConformance):
    """Tests every admission policy, registered by the plugin or being the plugin itself."""

    kind = "admission"

    @pytest.fixture
    def admission(self, subject: Subject) -> object:
        return _made(subject)


class TestExecutor(ExecutorConformance):
    """Tests every executor."""

    kind = "distributed_executor_backend"

    @pytest.fixture
    def distributed_executor_backend(self, subject: Subject) -> Any:
        return subject.make()


class TestAttention(AttentionConformance):
    """Tests every attention backend, on the GPU if there is one that the backend supports."""

    kind = "attention_backend"

    @pytest.fixture
    def attention_backend(self, subject: Subject) -> Any:
        return subject.make()


class TestLinear(LinearConformance):
    """Tests every linear backend, on the GPU if there is one that the backend supports."""

    kind = "linear_backend"

    @pytest.fixture
    def linear_backend(self, subject: Subject) -> Any:
        return subject.make()


class TestGrammar(GrammarConformance):
    """Tests every grammar backend."""

    kind = "grammar_backend"

    @pytest.fixture
    def grammar_backend(self, subject: Subject) -> Any:
        return subject.make()


class TestModelImpl(ModelImplConformance):
    """Tests every implementation of models."""

    kind = "model_impl"

    @pytest.fixture
    def model_impl(self, subject: Subject) -> Any:
        return subject.make()


class TestToolCallParser(ToolCallParserConformance):
    """Tests every parser of tool calls."""

    kind = "tool_call_parser"

    @pytest.fixture
    def tool_call_parser(self, subject: Subject) -> object:
        return subject.make()


class TestReasoningParser(ReasoningParserConformance):
    """Tests every parser of reasoning."""

    kind = "reasoning_parser"

    @pytest.fixture
    def reasoning_parser(self, subject: Subject) -> object:
        return subject.make()


class TestRouter(RouterConformance):
    """Tests every router."""

    kind = "router"

    @pytest.fixture
    def router(self, subject: Subject) -> object:
        return subject.make


class TestWeightFormat(WeightFormatConformance):
    """Tests every weight format."""

    kind = "weight_format"

    @pytest.fixture
    def weight_format(self, subject: Subject) -> Any:
        return subject.make()


class TestLogitsProcessor(LogitsProcessorConformance):
    """Tests every logits processor."""

    kind = "logits_processor"

    @pytest.fixture
    def logits_processor(self, subject: Subject) -> Any:
        return _made(subject)


class TestObserver(ObserverConformance):
    """Tests every observer, registered by the plugin or being the plugin itself."""

    kind = "observer"

    @pytest.fixture
    def observer(self, subject: Subject) -> object:
        return _made(subject)


def _made(subject: Subject) -> object:
    """The object that the factory makes. A factory may return None to take no part."""
    made = subject.make()
    if made is None:
        pytest.skip(f"the factory of {subject.kind} {subject.name!r} returned None")
    return made
