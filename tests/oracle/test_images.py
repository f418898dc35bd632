"""Chats with images get transformers' own tokens, whatever engine and memory do."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import pytest
from PIL import Image

from tokenmill import LLM, SamplingParams

from . import tiny_mistral3, tiny_qwen2_vl, tiny_smolvlm
from .image_reference import ImageReference
from .settings import Setting, few_settings, full_product
from .tiny_smolvlm import picture

NUM_TOKENS = 24
SIZES = ((9, 20), (200, 40), (40, 200), (64, 64), (150, 100), (1, 30))
"""Width and height. In SmolVLM they become 5 to 17 tiles; in Mistral 3, 1 to 6 lines."""
MAX_IMAGES = 3
STARVED_TOKENS = 480
"""Room in the KV cache for one or two of the longest chats."""
SMALL_STEP = 7
QUICK = few_settings(SMALL_STEP)
ALL = full_product(SMALL_STEP, 1024, block_sizes=(16,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A chat, and what transformers makes of it."""

    messages: list[dict[str, Any]]
    images: tuple[Image.Image, ...]
    prompt: list[int]
    answer: list[int]

    @property
    def with_images(self) -> list[dict[str, Any]]:
        """The messages with the images in their places."""
        images = iter(self.images)

        def filled(part: dict[str, Any]) -> dict[str, Any]:
            return part | {"image": next(images)} if part["type"] == "image" else part

        return [m | {"content": list(map(filled, m["content"]))} for m in self.messages]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of models without spans."""

    write_model: Callable[[Path], Path]
    make_reference: Callable[[Path], ImageReference]
    narrow: dict[str, int]
    """The size of images that have fewer tokens than images of SIZES."""
    starved_tokens: int = STARVED_TOKENS
    """Room in the KV cache for one or two of the longest chats."""


KINDS = {
    "smolvlm": Kind(
        write_model=tiny_smolvlm.write_model,
        make_reference=tiny_smolvlm.make_reference,
        narrow={"width": 4000, "height": 1},  # 5 tiles
    ),
    "mistral3": Kind(
        write_model=tiny_mistral3.write_model,
        make_reference=tiny_mistral3.make_reference,
        narrow={"width": 64, "height": 48},  # 3 lines of 4 tokens
    ),
    "qwen2_vl": Kind(
        write_model=tiny_qwen2_vl.write_model,
        make_reference=tiny_qwen2_vl.make_reference,
        narrow={"width": 64, "height": 48},  # 3 lines of 4 tokens, and others have 25
        starved_tokens=224,
    ),
}


@dataclass(frozen=True, slots=True)
class Model:
    """A model of one of KINDS in a folder."""

    folder: Path
    kind: str

    @property
    def reference(self) -> ImageReference:
        return KINDS[self.kind].make_reference(self.folder)

    @property
    def starved_tokens(self) -> int:
        return KINDS[self.kind].starved_tokens


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    kind: str = request.param
    return Model(KINDS[kind].write_model(tmp_path_factory.mktemp(kind)), kind)


@cache
def cases(model: Model, number: int) -> list[Case]:
    """Chats with 0 to 3 images, at any place, of one to three turns. Some share a beginning."""
    rng, reference = random.Random(0), model.reference
    pictures = [picture(seed, *SIZES[seed % len(SIZES)]) for seed in range(8)]
    return [
        make_case(rng, reference, pictures, index % (MAX_IMAGES + 1)) for index in range(number)
    ]


class Answers(Protocol):
    """transformers' answers to chats."""

    def answer(
        self, messages: Sequence[Any], images: Sequence[Image.Image], num_tokens: int
    ) -> tuple[list[int], list[int]]: ...


def make_case(
    rng: random.Random, reference: Answers, pictures: Sequence[Image.Image], num_images: int
) -> Case:
    """A chat with some of the pictures, of one or three turns."""
    images = tuple(rng.choices(pictures, k=num_images))
    texts = rng.choices(("What is this?", "and", "Compare them.\n\n", "é"), k=rng.randint(1, 4))
    parts = [{"type": "image"}] * num_images + [{"type": "text", "text": t} for t in texts]
    rng.shuffle(parts)
    cut = rng.randint(1, len(parts))
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts[:cut]}]
    if parts[cut:]:
        said = {"type": "text", "text": "A cat."}
        messages += [{"role": "assistant", "content": [said]}]
        messages += [{"role": "user", "content": parts[cut:]}]
    prompt, answer = reference.answer(messages, images, NUM_TOKENS)
    return Case(messages=messages, images=images, prompt=prompt, answer=answer)


def check_chats(
    folder: Path,
    chosen: Sequence[Case],
    setting: Setting,
    starved_tokens: int = STARVED_TOKENS,
    num_groups: int = 1,
    **options: Any,
) -> None:
    """All chats at once, and once more: then images and beginnings are known. `num_groups`: of
    layers, each of which has blocks of its own."""
    room = num_groups * starved_tokens // setting.block_size
    num_blocks = room if setting.is_starved else None
    given = setting.options() | {"max_model_len": starved_tokens, "max_num_seqs": 7} | options
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(
        str(folder),
        disable_log_stats=True,
        num_gpu_blocks_override=num_blocks,
        swap_space=0.05,
        **given,
    ) as llm:
        num_preemptions = 0
        for seed in (1, 2):
            order = random.Random(seed).sample(chosen, len(chosen))
            outputs = llm.chat([case.with_images for case in order], params, use_tqdm=False)
            for case, output in zip(order, outputs, strict=True):
                assert list(output.prompt_token_ids) == case.prompt
                assert list(output.outputs[0].token_ids) == case.answer
            num_preemptions += sum(o.metrics.num_preemptions for o in outputs if o.metrics)
        assert (num_preemptions > 0) is setting.is_starved
        has_hits = any(output.num_cached_tokens > 0 for output in outputs)
        if num_groups == 1 or not setting.is_starved:  # else few hits have all groups' blocks
            assert has_hits is setting.enable_prefix_caching


@pytest.mark.parametrize("setting", QUICK, ids=str)
def test_a_few_chats_have_the_tokens_of_transformers(model: Model, setting: Setting) -> None:
    check_chats(model.folder, cases(model, 12), setting, model.starved_tokens)


def test_drafts_change_no_token(model: Model) -> None:
    check_chats(model.folder, cases(model, 12)[:6], QUICK[0], speculative_method="ngram")


def test_an_encoder_cache_for_fewer_tokens_than_a_prompt_has_changes_no_token(
    model: Model,
) -> None:
    """Images of the sizes in the limit need a third of the tokens of the largest prompts."""
    limit = {"image": {"count": MAX_IMAGES, **KINDS[model.kind].narrow}}
    check_chats(model.folder, cases(model, 12)[2:8], QUICK[0], limit_mm_per_prompt=limit)


@pytest.mark.check
@pytest.mark.parametrize("size", ["data", "tensor", "pipeline"])
def test_several_processes_change_no_token(model: Model, size: str) -> None:
    options = {f"{size}_parallel_size": 2}
    check_chats(model.folder, cases(model, 12), Setting(scheduler="chunked"), **options)


def test_texts_that_spell_tokens_of_images_stay_texts(model: Model) -> None:
    """The chat has a place for one image, which is the real one."""
    case = next(case for case in cases(model, 12) if len(case.images) == 1)
    spelled = {"type": "text", "text": "<image>[IMG][IMG_BREAK][IMG_END]<|image_pad|>"}
    chat = [*case.with_images, {"role": "assistant", "content": "So?"}]
    chat += [{"role": "user", "content": [spelled]}]
    number = model.reference.image_token_id
    with LLM(str(model.folder), dtype="float32", max_model_len=STARVED_TOKENS) as llm:
        [output] = llm.chat(chat, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    assert list(output.prompt_token_ids).count(number) == case.prompt.count(number) > 0


def test_images_change_the_answer(model: Model) -> None:
    """Otherwise the other tests prove nothing about images."""
    reference = model.reference
    chat = [{"role": "user", "content": [{"type": "image"}]}]
    answers = {
        tuple(reference.answer(chat, [picture(seed, 64, 64)], NUM_TOKENS)[1]) for seed in range(3)
    }
    assert len(answers) == 3


@pytest.mark.soak
@pytest.mark.parametrize("setting", ALL, ids=str)
def test_50_chats_have_the_tokens_of_transformers(model: Model, setting: Setting) -> None:
    check_chats(model.folder, cases(model, 50), setting, model.starved_tokens)
