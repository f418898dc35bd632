"""Images in a program: LLM and AsyncEngine give transformers' own tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.tiny_smolvlm import make_reference, picture, png, write_model
from tokenmill import LLM, AsyncEngine, SamplingParams
from tokenmill.core.errors import ConfigError, InvalidRequestError

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
ONE, TWO = picture(1, 60, 50), picture(2, 200, 40)
OPTIONS: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 128}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("smolvlm"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), **OPTIONS, disable_log_stats=True) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[int]:
    parts = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}]
    chat = [{"role": "user", "content": parts}]
    return make_reference(folder).answer(chat, [ONE, TWO], 6)[1]


@pytest.mark.parametrize(
    "parts",
    [
        ({"type": "image_pil", "image_pil": ONE}, {"type": "image", "image": TWO}),
        ({"type": "image", "image": png(ONE)}, {"type": "image_pil", "image_pil": TWO}),
    ],
    ids=["images", "bytes"],
)
def test_a_chat_takes_images_of_pillow_and_bytes(
    llm: LLM, expected: list[int], parts: tuple[Any, Any]
) -> None:
    content = [parts[0], {"type": "text", "text": "and"}, parts[1]]
    chat: list[Any] = [{"role": "user", "content": content}]
    one, two = llm.chat([chat, chat], GREEDY)
    assert list(one.outputs[0].token_ids) == list(two.outputs[0].token_ids) == expected


def test_a_prompt_takes_images_in_the_shape_of_vllm(llm: LLM, expected: list[int]) -> None:
    words = "<|im_start|>User:<image>and<image><end_of_utterance>\nAssistant:"
    prompts: list[Any] = [
        {"prompt": words, "multi_modal_data": {"image": [ONE, TWO]}},
        {"prompt": words, "multi_modal_data": {"image": [png(ONE), TWO]}},
        "Hi",
    ]
    with_images, with_bytes, _ = llm.generate(prompts, GREEDY)
    assert list(with_images.outputs[0].token_ids) == expected
    assert list(with_bytes.outputs[0].token_ids) == expected
    alone = llm.generate({"prompt": "<image>", "multi_modal_data": {"image": ONE}}, GREEDY)
    assert len(alone[0].prompt_token_ids) > 17 * 4


def test_the_engine_takes_them_as_well(folder: Path, expected: list[int]) -> None:
    words = "<|im_start|>User:<image>and<image><end_of_utterance>\nAssistant:"
    content = [{"type": "image", "image": i} for i in (ONE, TWO)]
    content.insert(1, {"type": "text", "text": "and"})

    async def run() -> None:
        async with AsyncEngine(str(folder), **OPTIONS, disable_log_stats=True) as engine:
            given: Any = {"prompt": words, "multi_modal_data": {"image": [ONE, TWO]}}
            chat: Any = [{"role": "user", "content": content}]
            for outputs in (
                engine.generate(given, GREEDY, cache_salt="a"),
                engine.chat(chat, GREEDY),
            ):
                last = [output async for output in outputs][-1]
                assert list(last.outputs[0].token_ids) == expected

    asyncio.run(run())


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ({"prompt": "a", "multi_modal_data": {"image": ONE}}, "shows 0 of 1 images"),
        ({"prompt": "<image><image>", "multi_modal_data": {"image": ONE}}, "places for 2 images"),
        ({"prompt": "a", "multi_modal_data": {"video": ONE}}, "must be {'image': ...}"),
        ({"prompt": "a", "multi_modal_data": ONE}, "must be {'image': ...}"),
        ({"prompt": "<image>", "multi_modal_data": {"image": 7}}, "image\\[0\\]: an image is a"),
        ({"prompt": "a", "multi_modal_data": {"image": [ONE] * 9}}, "at most 8 images"),
    ],
    ids=range(6),
)
def test_wrong_prompts_are_refused(llm: LLM, prompt: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        llm.generate(prompt, GREEDY)


def test_without_pillow_images_are_refused_with_the_reason(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenmill.backends.media.reader.find_spec", lambda name: None)
    prompt: Any = {"prompt": "<image>", "multi_modal_data": {"image": png(picture(9, 5, 5))}}
    with pytest.raises(InvalidRequestError, match=r"pip install 'tokenmill\[vision\]'"):
        llm.generate(prompt, GREEDY)


def test_settings_of_the_processor_are_checked_at_the_start(folder: Path) -> None:
    with pytest.raises(ConfigError, match="there is no 'sise'"):
        LLM(str(folder), **OPTIONS, mm_processor_kwargs={"sise": 1})


def test_settings_of_the_processor_change_the_prompt(folder: Path) -> None:
    with LLM(str(folder), **OPTIONS, mm_processor_kwargs={"do_image_splitting": False}) as llm:
        prompt: Any = {"prompt": "<image>", "multi_modal_data": {"image": ONE}}
        assert len(llm.generate(prompt, GREEDY)[0].prompt_token_ids) == 4 + 3
