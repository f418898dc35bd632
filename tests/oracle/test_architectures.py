"""Every native architecture serves the tokens of transformers, from both kinds of files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tokenmill.backends.weights.checkpoint import open_checkpoint

from . import toy
from .architectures import MODELS, write
from .comparison import find_near_ties
from .reference import ReferenceCase, continue_greedily, gap
from .settings import Setting, alternating_product
from .speculating import speculate
from .test_toy_product import CHUNKS, WHOLE

SETTINGS = (
    Setting(scheduler="chunked", block_size=8, is_starved=True, max_num_batched_tokens=CHUNKS),
    Setting(scheduler="prefill-first", preemption_mode="swap", is_starved=True),
)
"""The first for directories and the second for GGUF files: chunks, preemption and prefix hits."""


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model, paths = write(name, tmp_path)
    prompts = toy.make_prompts()[4::2]
    cases = make_cases(model, prompts, num_tokens=16)
    assert len({case.token_ids for case in cases}) == len(cases)
    for path, setting in zip(paths, SETTINGS, strict=False):
        served = toy.serve(setting, cases, open_checkpoint(path), **speculate("ngram", 3))
        find_near_ties(partial(gap, model), cases, served.token_ids)
        assert served.num_preempted > 0
        assert served.num_hit_tokens > 0
        assert served.num_draft_tokens > 0


def test_longrope_serves_long_contexts_when_they_are_asked_for(tmp_path: Path) -> None:
    """Sequences beyond the original context have other frequencies, in transformers too."""
    config = MODELS["phi4-mini"]
    changes = {**config.changes, "original_max_position_embeddings": 32}
    model = replace(config, changes=changes).make()
    model.save_pretrained(tmp_path)
    checkpoint, setting = open_checkpoint(tmp_path), Setting(scheduler="chunked")
    prompts = toy.make_prompts()
    long = make_cases(model, [prompt for prompt in prompts if len(prompt) > 32], num_tokens=8)
    served = toy.serve(setting, long, checkpoint, max_model_len=200)
    find_near_ties(partial(gap, model), long, served.token_ids)
    short = make_cases(model, [prompt for prompt in prompts if len(prompt) < 24], num_tokens=8)
    served = toy.serve(setting, short, checkpoint)
    find_near_ties(partial(gap, model), short, served.token_ids)
    assert toy.serve(setting, short, checkpoint, max_model_len=200).token_ids != served.token_ids


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "phi4-mini", "smollm3"])
def test_native_kernels_serve_nearly_the_same_in_bfloat16(name: str, tmp_path: Path) -> None:
    """The tokens are the reference's, or nearly as likely where they first differ."""
    model, (path, *_) = write(name, tmp_path)
    cases = make_cases(model, toy.make_prompts()[4::3], num_tokens=8)
    served = toy.serve(Setting(scheduler="chunked"), cases, open_checkpoint(path), dtype="bfloat16")
    for case, output in zip(cases, served.token_ids, strict=True):
        at = next((i for i in range(8) if output[i] != case.token_ids[i]), None)
        if at is not None:
            assert gap(model, [*case.prompt_token_ids, *case.token_ids[:at]]) < 0.25


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_transformers_in_every_setting(name: str, tmp_path: Path) -> None:
    model, paths = write(name, tmp_path)
    cases = make_cases(model, toy.make_prompts(), num_tokens=48)
    for path in paths:
        checkpoint = open_checkpoint(path)
        for index, setting in enumerate(alternating_product(WHOLE, CHUNKS)):
            drafts = speculate("ngram", 1 + index % 8) if index % 2 else {}
            served = toy.serve(setting, cases, checkpoint, **drafts)
            find_near_ties(partial(gap, model), cases, served.token_ids)


def make_cases(
    model: object, prompts: list[tuple[int, ...]], num_tokens: int
) -> list[ReferenceCase]:
    outputs = continue_greedily(model, prompts, num_tokens)
    names = [f"{len(prompt)} tokens" for prompt in prompts]
    return list(map(ReferenceCase, names, prompts, outputs))
