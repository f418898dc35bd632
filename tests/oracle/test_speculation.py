"""Greedy fp32 output with drafts is still transformers' own, token for token.

On the toy model test_toy_speculation.py tries the full product in every run. The real model needs
15 CPU seconds per case: `make check` tries every choice of a setting with ngram, `make soak` all
pairs, drafts of known accuracy and all other lengths.
"""

from __future__ import annotations

import random
from dataclasses import astuple
from itertools import combinations, product

import pytest

from tokenmill.backends.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.backends.weights.default_model import find_default_model

from . import toy
from .comparison import Served, check_what_took_place, find_near_ties
from .reference import Reference, ReferenceCase
from .serving import serve
from .settings import Setting
from .speculating import LENGTHS, METHODS, NAME, Foresight, speculate
from .test_greedy_equality import QUICK as QUICK_SETTINGS
from .test_greedy_equality import SETTINGS, STARVED_TOKENS

NUM_TOKENS = 32
NUM_CASES = 20
"""The longest prompts: some share their beginnings, and there is much to look up."""
CASES = [
    (setting, method, LENGTHS[(i + 3 * j) % len(LENGTHS)])
    for i, setting in enumerate(SETTINGS)
    for j, method in enumerate(METHODS)
]
QUICK = [case for case in CASES if case[0] in QUICK_SETTINGS and case[1] != NAME]
REST = [
    pytest.param(*case, marks=pytest.mark.soak)
    for case in product(SETTINGS, METHODS, LENGTHS)
    if case not in QUICK
]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(find_default_model())


@pytest.mark.parametrize(
    ("setting", "method", "num_tokens"),
    [*(pytest.param(*case, marks=pytest.mark.check) for case in QUICK), *REST],
    ids=str,
)
def test_tokens_are_those_of_transformers(
    setting: Setting,
    method: str,
    num_tokens: int,
    reference: Reference,
    cases: list[ReferenceCase],
    checkpoint: Checkpoint,
) -> None:
    shortened = [case.shortened(NUM_TOKENS) for case in cases]
    longest = sorted(shortened, key=lambda case: len(case.prompt_token_ids))[-NUM_CASES:]
    chosen = random.Random(f"{setting} {method}").sample(longest, NUM_CASES)
    options = speculate(method, num_tokens)
    if method == NAME:
        served = serve_with_foresight(setting, chosen, checkpoint, **options)
    else:
        served = serve(setting, chosen, STARVED_TOKENS // 3, **options)
    find_near_ties(reference.gap, chosen, served.token_ids)
    check_what_took_place(setting, served)
    assert 0 < served.num_accepted_tokens < served.num_draft_tokens


def serve_with_foresight(
    setting: Setting, cases: list[ReferenceCase], checkpoint: Checkpoint, **options: object
) -> Served:
    """Step by step, with a pool as `serve` makes it."""
    num_tokens = STARVED_TOKENS // 3 if setting.is_starved else 16 * STARVED_TOKENS
    return toy.serve(
        setting,
        cases,
        checkpoint,
        plugins=[Foresight(cases)],
        num_gpu_blocks_override=num_tokens // setting.block_size,
        swap_space=0.25,
        **options,
    )


def test_every_pair_of_choices_is_among_the_cases() -> None:
    """With the method as one choice more."""

    def pairs(cases: list[tuple[object, ...]]) -> set[object]:
        return {pair for case in cases for pair in combinations(enumerate(case), 2)}

    found = [(*astuple(setting), method) for setting, method, _ in CASES]
    expected = [(*astuple(s), method) for s, method in product(SETTINGS, METHODS)]
    assert pairs(found) == pairs(expected)
    assert {length for _, _, length in CASES} == set(LENGTHS)
