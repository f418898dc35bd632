"""Every native architecture is one call of the native library per step in bfloat16."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig

from tests.backends.chosen import backends_of
from tests.backends.random_weights import random_checkpoint
from tests.oracle.architectures import MODELS, SIZES
from tokenmill.backends.cpu.native.library import Library
from tokenmill.backends.execution.in_process import ModelExecutor
from tokenmill.backends.weights.config.architectures import TABLE
from tokenmill.backends.weights.huggingface.config import from_hf_config
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import no_progress
from tokenmill.core.plan import Grant, RequestStart, StepPlan
from tokenmill.core.requests.sampling_params import SamplingParams

ONE_CALL = Counter({"tm_run_decoder": 1, "tm_read_logits": 1})
EXCEPTIONS = {"phi4-mini": "it has 12 rotated elements of a head, which is no multiple of 16"}
"""Models that run layer by layer, each with the reason. Phi-4-mini itself rotates 96."""


CONFIGS = {
    name: from_hf_config(model.config().to_dict())
    for name, model in MODELS.items()
    if model.within is None
}
CONFIGS["qwen2.5-vl"] = from_hf_config(
    Qwen2_5_VLTextConfig(
        **SIZES, rope_parameters={"rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    ).to_dict()
)


def prompt_of_three_tokens(num_groups: int) -> StepPlan:
    start = RequestStart(
        engine_id="a",
        token_ids=(1, 2, 3),
        num_prompt_tokens=3,
        sampling_params=SamplingParams(temperature=0.0),
        seed=0,
        stop_token_ids=(),
    )
    blocks = tuple((group,) for group in range(num_groups))
    grant = Grant(engine_id="a", start=0, num_tokens=3, new_block_ids=blocks, samples=True)
    return StepPlan(step_id=1, starts=(start,), grants=(grant,))


def count_calls(monkeypatch: pytest.MonkeyPatch, library: Library) -> Counter[str]:
    """Count the calls of functions that compute, by name."""
    calls: Counter[str] = Counter()
    declare, linear = Library.computing, library.linear

    def counted(name: str, function: Callable[..., None]) -> Callable[..., None]:
        def call(*values: object) -> None:
            calls[name] += 1
            function(*values)

        return call

    def computing(self: Library, name: str, *types: Any) -> Callable[..., None]:
        return counted(name, declare(self, name, *types))

    monkeypatch.setattr(Library, "computing", computing)
    monkeypatch.setattr(library, "linear", counted("tm_linear", linear))
    return calls


@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_is_one_native_call(
    name: str,
    library: Library,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "tokenmill")
    calls = count_calls(monkeypatch, library)
    config = EngineConfig(device="cpu", dtype="bfloat16", num_gpu_blocks_override=20)
    checkpoint = random_checkpoint(CONFIGS[name], 4)
    backends = backends_of(PluginHost.load(config))
    executor = ModelExecutor.from_checkpoint(checkpoint, config, backends, no_progress)
    calls.clear()
    executor.run(prompt_of_three_tokens(len(executor.info.kv_windows)))
    executor.close()
    logged = [record for record in caplog.records if record.msg == "model_runs_layer_by_layer"]
    reasons = [reason for record in logged for reason in vars(record)["reasons"]]
    assert reasons == [EXCEPTIONS[name]] if name in EXCEPTIONS else calls == ONE_CALL


def test_these_are_all_native_architectures() -> None:
    assert {config.architecture for config in CONFIGS.values()} == {row.name for row in TABLE}
