"""The engine's own plugins pass the suites that a third party's must pass: no private door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.backends.weights.quantization.writers import CASES
from tests.oracle.architectures import write
from tests.plugins.tool_parsers.corpus import CORPUS
from tokenmill.backends.attention.pair import BackendPair
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.weights.quantization.sample import QuantizedSample
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.registry import PluginContext
from tokenmill.core.host.discovery import OWN_DISTRIBUTION, find_installed
from tokenmill.plugins.admission.token_bucket import TokenBucket, TokenBucketOptions
from tokenmill.plugins.observers.kv_events import make_kv_events
from tokenmill.plugins.observers.otel.traces import OtelTraces
from tokenmill.plugins.speculative.ngram import NgramOptions, NgramSpeculator
from tokenmill.testing import (
    AdmissionConformance,
    AttentionConformance,
    DraftLengthConformance,
    ExecutorConformance,
    GrammarConformance,
    LinearConformance,
    LogitsProcessorConformance,
    MediaProcessorConformance,
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
from tokenmill.testing.conformance.installed import LoadedPlugin, Subject

OWN = [n for n, p in find_installed().items() if p.source.distribution == OWN_DISTRIBUTION]
SUBJECTS = [subject for name in OWN for subject in LoadedPlugin(name).subjects()]


REASONED = {
    "think": [("<think>\nso\n</think>\n\nOslo", "so", "Oslo")],
    "mistral-think": [("[THINK]so[/THINK]Oslo", "so", "Oslo")],
}
"""Answers of reasoning models: text, reasoning, content."""


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


EXECUTORS = [one for one in of_kind("distributed_executor_backend") if one.name != "ray"]
"""Without Ray, which needs a cluster: tests/check/ray runs the suite beside one."""


class TestOwnExecutors(ExecutorConformance):
    @pytest.fixture(params=EXECUTORS, ids=lambda subject: subject.name)
    def distributed_executor_backend(self, request: pytest.FixtureRequest) -> Any:
        return request.param.make()


class TestOwnAttentionBackends(AttentionConformance):
    """Those for GPUs are skipped where there is none; their own tests have them emulated."""

    @pytest.fixture(params=of_kind("attention_backend"), ids=lambda subject: subject.name)
    def attention_backend(self, request: pytest.FixtureRequest) -> Any:
        return request.param.make()


class TestOwnLinearBackends(LinearConformance):
    @pytest.fixture(params=of_kind("linear_backend"), ids=lambda subject: subject.name)
    def linear_backend(self, request: pytest.FixtureRequest) -> Any:
        return request.param.make()


class TestOwnLogitsProcessors(LogitsProcessorConformance):
    @pytest.fixture(params=of_kind("logits_processor"), ids=lambda subject: subject.name)
    def logits_processor(self, request: pytest.FixtureRequest) -> Any:
        return request.param.make()


class TestOwnGrammarBackends(GrammarConformance):
    @pytest.fixture(params=of_kind("grammar_backend"), ids=lambda subject: subject.name)
    def grammar_backend(self, request: pytest.FixtureRequest) -> Any:
        return request.param.make()


class TestOwnMediaProcessors(MediaProcessorConformance):
    @pytest.fixture(params=of_kind("media_processor"), ids=lambda subject: subject.name)
    def media_processor(self, request: pytest.FixtureRequest) -> Any:
        return request.param.make()


class TestOwnModelImpls(ModelImplConformance):
    @pytest.fixture(params=of_kind("model_impl"), ids=lambda subject: subject.name)
    def model_impl(self, request: pytest.FixtureRequest) -> Any:
        return request.param.make()

    @pytest.fixture
    def model_path(self, tmp_path: Path) -> Path:
        """A model that both implementations can run."""
        write("llama", tmp_path)
        return tmp_path / "model"


SAMPLES = {
    "awq": ["awq"],
    "gptq": ["gptq", "gptq, zero points"],
    "fp8": ["fp8, blocks"],
    "compressed-tensors": ["compressed-tensors, int4", "compressed-tensors, int8"],
}
"""Writers of samples, by weight format."""


class TestOwnWeightFormats(WeightFormatConformance):
    @pytest.fixture(params=[(name, case) for name in SAMPLES for case in SAMPLES[name]], ids=str)
    def chosen(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    @pytest.fixture
    def weight_format(self, chosen: Any) -> Any:
        [subject] = [one for one in of_kind("weight_format") if one.name == chosen[0]]
        return subject.make()

    @pytest.fixture
    def write_sample(self, chosen: Any) -> Any:
        case = CASES[chosen[1]]

        def write(weights: torch.Tensor) -> QuantizedSample:
            tensors, matrix = case.write(weights)
            return QuantizedSample(settings=case.config, tensors=tensors, matrix=matrix)

        return write


def test_every_own_weight_format_has_samples_or_a_test_of_its_own() -> None:
    """MXFP4 has no writer here; test_transformers.py compares it with transformers'."""
    assert {one.name for one in of_kind("weight_format")} - SAMPLES.keys() == {"mxfp4"}


class TestPairedAttentionBackends(AttentionConformance):
    @pytest.fixture
    def attention_backend(self) -> Any:
        return BackendPair(TorchAttention, TorchAttention)


class TestOwnSpeculators(SpeculatorConformance):
    @pytest.fixture(params=of_kind("speculative_method"), ids=lambda subject: subject.name)
    def speculative_method(self, request: pytest.FixtureRequest) -> object:
        return request.param.make


class TestOtherNgrams(SpeculatorConformance):
    @pytest.fixture(params=[{"prompt_lookup_max": 1}, {"prompt_lookup_min": 5}], ids=str)
    def speculative_method(self, request: pytest.FixtureRequest) -> object:
        return NgramSpeculator(NgramOptions(**request.param))


class TestOwnDraftLengths(DraftLengthConformance):
    @pytest.fixture(params=of_kind("draft_length"), ids=lambda subject: subject.name)
    def draft_length(self, request: pytest.FixtureRequest) -> object:
        return request.param.make


class TestOwnToolCallParsers(ToolCallParserConformance):
    @pytest.fixture(params=of_kind("tool_call_parser"), ids=lambda subject: subject.name)
    def own(self, request: pytest.FixtureRequest) -> Subject:
        subject: Subject = request.param
        return subject

    @pytest.fixture
    def tool_call_parser(self, own: Subject) -> object:
        return own.make()

    @pytest.fixture
    def answers(self, own: Subject) -> Any:
        """The answers of the corpus that call only functions of the suite."""
        return [
            (text, calls)
            for text, _, calls in CORPUS.get(own.name, ())
            if all(name == "weather" for name, _ in calls)
        ]


class TestOwnReasoningParsers(ReasoningParserConformance):
    @pytest.fixture(params=of_kind("reasoning_parser"), ids=lambda subject: subject.name)
    def own(self, request: pytest.FixtureRequest) -> Subject:
        subject: Subject = request.param
        return subject

    @pytest.fixture
    def reasoning_parser(self, own: Subject) -> object:
        return own.make()

    @pytest.fixture
    def answers(self, own: Subject) -> Any:
        return REASONED.get(own.name, ())


class TestOwnRouters(RouterConformance):
    @pytest.fixture(params=of_kind("router"), ids=lambda subject: subject.name)
    def router(self, request: pytest.FixtureRequest) -> object:
        return request.param.make


class TestOwnObservers(ObserverConformance):
    """Those that are active by default."""

    @pytest.fixture(
        params=[one for one in of_kind("observer") if one.name not in ("kv-events", "otel")],
        ids=lambda subject: subject.name,
    )
    def observer(self, request: pytest.FixtureRequest) -> object:
        return request.param.make()


class TestTraces(ObserverConformance):
    """With an address where no collector listens."""

    @pytest.fixture
    def observer(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
        # It gives up soon. A thread that outlived the test and tried again would use `random`,
        # which hypothesis forbids in the next test.
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.01")
        traces = OtelTraces("http://127.0.0.1:9/v1/traces")
        yield traces
        traces.close()


class TestKVEvents(ObserverConformance):
    """With no consumer."""

    @pytest.fixture
    def observer(self) -> object:
        config = EngineConfig(kv_events_config={"enable_kv_cache_events": True})
        events = make_kv_events(PluginContext(config=config))
        assert events is not None
        return events


TIGHT = TokenBucketOptions(requests_per_minute=6, tokens_per_minute=600, burst=10)


class TestTokenBucket(AdmissionConformance):
    """With limits that the suite's requests meet; without a limit it stays out."""

    @pytest.fixture
    def admission(self) -> object:
        return TokenBucket(TIGHT)


class TestHooksOfTokenBucket(ObserverConformance):
    """With limits that the suite's requests do not meet."""

    @pytest.fixture
    def observer(self) -> object:
        return TokenBucket(TokenBucketOptions(requests_per_minute=1e9, tokens_per_minute=1e9))


def test_each_of_them_is_put_to_a_suite() -> None:
    names = {subject.name for subject in SUBJECTS}
    assert {"chunked", "prefill-first", "fcfs", "priority", "recompute", "swap"} <= names
    assert {"cpu", "torch", "triton", "cuda-paged", "flash-attn", "xformers"} <= names
    assert {"prefix-aware", "least-loaded", "round-robin", "session"} <= names
    assert {"none", "ngram", "draft-model", "adaptive", "fixed"} <= names
    assert {"hermes", "llama3-json", "mistral", "gemma", "pythonic", "think"} <= names
    assert {"prometheus", "stats-log", "preemption-log", "token-bucket", "no-repeat-ngram"} <= names
