"""Gemma 3's images see themselves in both directions; its chats get transformers' own tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tokenmill import LLM, SamplingParams
from tokenmill.backends.running import image_model

from .settings import Setting, few_settings, full_product
from .test_images import MAX_IMAGES, NUM_TOKENS, Case, check_chats, make_case
from .tiny_gemma3 import TOKENS_PER_IMAGE, make_reference, write_model
from .tiny_smolvlm import picture

SIZES = ((64, 64), (9, 9), (200, 40), (1, 30))
"""Width and height. All become one square."""
STARVED_TOKENS = 192
"""Room in the KV cache for one or two of the longest chats."""
SMALL_STEP = TOKENS_PER_IMAGE + 8
"""The smallest one that has room for an image beside one token of each of 7 other requests."""
QUICK = few_settings(SMALL_STEP)
ALL = full_product(SMALL_STEP, 1024, block_sizes=(16,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("gemma3"))


@cache
def cases(folder: Path, number: int) -> list[Case]:
    """Chats with 0 to 3 images, at any place, of one to three turns. Some share a beginning."""
    rng, reference = random.Random(0), make_reference(folder)
    pictures = [picture(seed, *SIZES[seed % len(SIZES)]) for seed in range(6)]
    return [make_case(rng, reference, pictures, at % (MAX_IMAGES + 1)) for at in range(number)]


def check(folder: Path, chosen: Sequence[Case], setting: Setting, **options: Any) -> None:
    check_chats(folder, chosen, setting, STARVED_TOKENS, num_groups=2, **options)


@pytest.mark.parametrize("setting", QUICK, ids=str)
def test_a_few_chats_have_the_tokens_of_transformers(folder: Path, setting: Setting) -> None:
    check(folder, cases(folder, 12), setting)


def test_torch_attention_gives_the_same_tokens(folder: Path) -> None:
    check(folder, cases(folder, 12)[:6], QUICK[0], attention_backend="torch")


def test_drafts_change_no_token(folder: Path) -> None:
    check(folder, cases(folder, 12)[:6], QUICK[0], speculative_method="ngram")


def test_a_prompt_of_text_is_read_as_a_chat(folder: Path) -> None:
    """In vLLM's shape. Blank lines around images are the processor's in both."""
    case = cases(folder, 12)[7]
    given = {
        "prompt": make_reference(folder).text(case.messages),
        "multi_modal_data": {"image": list(case.images)},
    }
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM(str(folder), dtype="float32", max_model_len=STARVED_TOKENS) as llm:
        [output] = llm.generate(given, params, use_tqdm=False)
    assert list(output.prompt_token_ids) == case.prompt
    assert list(output.outputs[0].token_ids) == case.answer


def test_causal_attention_would_change_the_tokens(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the other tests prove nothing about attention."""
    chosen = [case for case in cases(folder, 12) if case.images]
    monkeypatch.setattr(image_model, "find_last_keys", lambda ordered: None)
    for case in chosen[:3]:
        with pytest.raises(AssertionError):
            check(folder, [case], QUICK[0])


@pytest.mark.check
@pytest.mark.parametrize("size", ["data", "tensor", "pipeline"])
def test_several_processes_change_no_token(folder: Path, size: str) -> None:
    options = {f"{size}_parallel_size": 2}
    check(folder, cases(folder, 12), Setting(scheduler="chunked"), **options)


@pytest.mark.soak
@pytest.mark.parametrize("setting", ALL, ids=str)
def test_50_chats_have_the_tokens_of_transformers(folder: Path, setting: Setting) -> None:
    check(folder, cases(folder, 50), setting)
