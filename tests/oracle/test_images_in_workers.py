"""Chats with images get transformers' own tokens from several processes, too."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.plugin import StepDone, hookimpl

from .settings import Setting
from .test_images import QUICK, Model, cases, check_chats, model
from .tiny_smolvlm import TOKENS_PER_TILE

__all__ = ["model"]  # pytest finds the fixture by this name
DIVISIONS: dict[str, dict[str, Any]] = {
    "one-worker": {"distributed_executor_backend": "multiprocess"},
    "tensor-parallel": {"tensor_parallel_size": 2},
    "pipeline-parallel": {"pipeline_parallel_size": 2},
    "both": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
}
CHUNKS = Setting(scheduler="chunked", max_num_batched_tokens=64, block_size=8)


class Watch:
    """Keeps what the engine says about its steps."""

    def __init__(self) -> None:
        self.steps: list[StepDone] = []

    @hookimpl
    def on_step(self, event: StepDone) -> None:
        self.steps.append(event)


@pytest.mark.parametrize("model", ["smolvlm"], indirect=True)
@pytest.mark.parametrize("division", ["tensor-parallel", "pipeline-parallel"])
def test_a_chat_has_its_tokens_and_steps_tell_the_encoder_s_work(
    model: Model, division: str
) -> None:
    watch = Watch()
    check_chats(model.folder, cases(model, 2)[1:], CHUNKS, plugins=[watch], **DIVISIONS[division])
    num_encoded = sum(step.mm_cache_queries - step.mm_cache_hits for step in watch.steps)
    num_tokens = sum(step.num_encoded_tokens for step in watch.steps)
    assert num_tokens == TOKENS_PER_TILE * num_encoded > 0
    assert sum(step.encoder_seconds for step in watch.steps) > 0
    assert all(step.encoder_seconds == 0 for step in watch.steps if not step.num_encoded_tokens)


@pytest.mark.soak
@pytest.mark.parametrize("setting", QUICK, ids=str)
@pytest.mark.parametrize("division", DIVISIONS)
def test_50_chats_have_the_tokens_of_transformers(
    model: Model, division: str, setting: Setting
) -> None:
    check_chats(model.folder, cases(model, 50), setting, **DIVISIONS[division])
