"""Images of Qwen2.5-VL change the positions of tokens. See test_images.py for its chats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tokenmill import LLM, SamplingParams
from tokenmill.backends.running import image_model
from tokenmill.backends.running.image_model import ImageStep
from tokenmill.backends.state.input_batch import InputBatch
from tokenmill.backends.state.request_state import RequestState
from tokenmill.core.plan import Grant

from .settings import Setting
from .test_images import NUM_TOKENS, Model, cases, check_chats
from .tiny_qwen2_vl import IMAGE, make_reference, write_model

SETTING = Setting(scheduler="chunked", max_num_batched_tokens=64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """With the fields of config.json in the order of Qwen's own files."""
    return Model(write_model(tmp_path_factory.mktemp("flat"), is_flat=True), "qwen2_vl")


def test_torch_gives_the_tokens_of_transformers(model: Model) -> None:
    """This engine runs layer by layer. In the other tests, steps are native calls."""
    check_chats(model.folder, cases(model, 12)[:4], SETTING, attention_backend="torch")


def test_positions_of_text_would_change_the_tokens(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If they did not, the other tests would prove nothing about positions."""
    monkeypatch.setattr(image_model, "find_turns", _of_text)
    with pytest.raises(AssertionError):
        check_chats(model.folder, [case for case in cases(model, 12) if case.images][:3], SETTING)


def _of_text(ordered: Sequence[tuple[Grant, RequestState]]) -> npt.NDArray[np.int64]:
    parts = [np.arange(one.start, one.start + one.num_tokens) for one, _ in ordered]
    return np.tile(np.concatenate(parts), (3, 1))


def test_only_steps_with_images_have_other_positions(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of text are computed as those of any other model."""
    steps: list[ImageStep | None] = []
    plain = image_model.ImageModel.step

    def step(*given: object) -> ImageStep | None:
        steps.append(plain(*given))  # type: ignore[arg-type]
        return steps[-1]

    monkeypatch.setattr(image_model.ImageModel, "step", step)
    for case in cases(model, 12)[:2]:
        check_chats(model.folder, [case], SETTING)
        if case.images:
            assert all(one is not None and one.batch.rotary_3t is not None for one in steps)
        else:
            assert steps and not any(steps)
        steps.clear()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_text_has_the_same_numbers_with_three_equal_positions(
    model: Model, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In native calls, to the last bit."""

    def numbers() -> list[object]:
        params = SamplingParams(
            temperature=0, max_tokens=8, ignore_eos=True, logprobs=1, prompt_logprobs=1
        )
        with LLM(str(model.folder), dtype=dtype, max_model_len=480) as llm:
            prompts = ["What is this?" * 9, "a", "An answer"]
            outputs = llm.generate(prompts, params, use_tqdm=False)
        return [(one.prompt_logprobs, one.outputs[0].logprobs) for one in outputs]

    plain = numbers()
    steps: list[ImageStep] = []

    def turned(self: object, batch: InputBatch, grants: Any, states: Any) -> ImageStep:
        ordered = [(grants[index], states[index]) for index in batch.grant_order]
        turns_3t = torch.from_numpy(image_model.find_turns(ordered))
        steps.append(ImageStep(batch=replace(batch, rotary_3t=turns_3t), rows=()))
        return steps[-1]

    monkeypatch.setattr(image_model.ImageModel, "step", turned)
    assert numbers() == plain
    assert steps


def test_a_user_who_spells_the_placeholder_gets_text(model: Model) -> None:
    """In a chat; in a prompt of text, the caller writes it for each image."""
    chat = [{"role": "user", "content": [{"type": "text", "text": f"a{IMAGE}b"}]}]
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    case = cases(model, 12)[2]
    given = {
        "prompt": make_reference(model.folder).text(case.messages),
        "multi_modal_data": {"image": list(case.images)},
    }
    with LLM(str(model.folder), dtype="float32", max_model_len=480) as llm:
        [output] = llm.chat(chat, params, use_tqdm=False)
        assert output.prompt_token_ids is not None
        assert model.reference.image_token_id not in output.prompt_token_ids
        params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
        [output] = llm.generate(given, params, use_tqdm=False)
    assert list(output.prompt_token_ids or ()) == case.prompt
    assert list(output.outputs[0].token_ids) == case.answer


def test_only_text_is_served_without_the_tower(tmp_path: Path, model: Model) -> None:
    [case] = [case for case in cases(model, 12)[:4] if not case.images]
    check_chats(model.folder, [case], SETTING, language_model_only=True)
