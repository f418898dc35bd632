"""Every native architecture serves the tokens of transformers, from both kinds of files."""

from __future__ import annotations

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
