"""Captured graphs of decodes, emulated on a CPU: tokens are those of the layers run one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from tests.oracle import toy
from tests.oracle.comparison import find_near_ties
from tests.oracle.reference import ReferenceCase, gap
from tests.oracle.settings import Setting
from tokenmill.backends.execution import in_process
from tokenmill.backends.running.graphs import graph_choice
from tokenmill.core.config import EngineConfig
from tokenmill.core.requests.sampling_params import SamplingParams

from .emulated_graphs import EmulatedCapture

SIZES = (1, 2, 4, 8, 24)
STARVED = Setting(
    scheduler="default",
    preemption_mode="swap",
    enable_prefix_caching=False,
    is_starved=True,
    block_size=8,
    max_num_batched_tokens=64,
)
AMPLE = Setting(
    scheduler="prefill-first",
    preemption_mode="recompute",
    enable_prefix_caching=True,
    is_starved=False,
    block_size=16,
    max_num_batched_tokens=256,
)


@pytest.fixture(scope="module")
def model() -> Any:
    return toy.make_reference()


@pytest.fixture(scope="module")
def cases(model: Any) -> list[ReferenceCase]:
    return toy.make_cases(model)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> EmulatedCapture:
    """The engine captures graphs on the CPU."""
    capture = EmulatedCapture()
    monkeypatch.setattr(graph_choice, "CUDACapture", lambda device: capture)
    monkeypatch.setattr(in_process, "_graph_sizes", sizes_of(SIZES))
    return capture


def sizes_of(sizes: Sequence[int]) -> Callable[..., Sequence[int]]:
    return lambda parts, config: sizes


def serve(setting: Setting, cases: Sequence[ReferenceCase], **options: Any) -> Any:
    return toy.serve(setting, cases, attention_backend="torch", linear_backend="torch", **options)


@pytest.mark.parametrize("setting", [STARVED, AMPLE], ids=str)
def test_tokens_are_those_of_transformers(
    setting: Setting, captured: EmulatedCapture, model: Any, cases: list[ReferenceCase]
) -> None:
    checks = len(SIZES)
    served = serve(setting, cases, dtype="float32")
    find_near_ties(partial(gap, model), cases, served.token_ids)
    assert captured.num_replays > checks + 10


def test_logprobs_of_prompts_and_tokens_are_those_without_graphs(
    monkeypatch: pytest.MonkeyPatch, captured: EmulatedCapture, cases: list[ReferenceCase]
) -> None:
    """Also rows that only score a prompt's token, which come after the sampled ones."""
    sampling = SamplingParams(
        temperature=0.9, seed=5, max_tokens=12, logprobs=2, prompt_logprobs=1, ignore_eos=True
    )
    with_graphs = serve(AMPLE, cases, sampling=sampling)
    assert captured.num_replays > len(SIZES)
    monkeypatch.setattr(in_process, "_graph_sizes", sizes_of(()))
    assert serve(AMPLE, cases, sampling=sampling).token_ids == with_graphs.token_ids


def test_a_wrong_graph_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cases: list[ReferenceCase]
) -> None:
    class Forgetful(EmulatedCapture):
        def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
            run()
            return lambda: None

    monkeypatch.setattr(graph_choice, "CUDACapture", lambda device: Forgetful())
    monkeypatch.setattr(in_process, "_graph_sizes", sizes_of(SIZES))
    served = serve(AMPLE, cases[:3])
    (found,) = [r for r in caplog.records if r.msg == "cuda_graphs_are_wrong"]
    assert vars(found)["sizes"] == list(SIZES)
    assert served.token_ids == [case.token_ids for case in cases[:3]]


def test_without_graphs_the_engine_runs_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cases: list[ReferenceCase]
) -> None:
    def refuse(run: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graph_choice, "CUDACapture", lambda device: refuse)
    monkeypatch.setattr(in_process, "_graph_sizes", sizes_of(SIZES))
    served = serve(AMPLE, cases[:3])
    (found,) = [r for r in caplog.records if r.msg == "cuda_graphs_not_captured"]
    assert "not permitted" in vars(found)["reason"]
    assert served.token_ids == [case.token_ids for case in cases[:3]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_num_seqs": 20}, (1, 2, 4, 8, 16, 20)),
        ({"max_num_seqs": 8}, (1, 2, 4, 8)),
        ({"max_num_seqs": 1}, (1,)),
        ({"max_num_seqs": 300}, (1, 2, 4, *range(8, 257, 8), 272, 288, 300)),
        ({"max_num_seqs": 64, "max_cudagraph_capture_size": 5}, (1, 2, 4, 5)),
        ({"max_num_seqs": 4, "cudagraph_capture_sizes": [8, 3, 3]}, (3,)),
        ({"compilation_config": '{"cudagraph_capture_sizes": [2, 1]}'}, (1, 2)),
        ({"compilation_config": {"cudagraph_mode": "none"}}, ()),
        ({"compilation_config": 3, "max_num_seqs": 2}, (1, 2)),
        ({"optimization_level": 0}, ()),
        ({"enforce_eager": True}, ()),
    ],
)
def test_sizes_follow_from_vllms_settings(options: dict[str, Any], expected: Sequence[int]) -> None:
    assert EngineConfig(**options).capture_sizes == expected
