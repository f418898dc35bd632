"""Greedy fp32 output is transformers' own, token for token, whatever engine and memory do.

On the toy model test_toy_product.py tries the full product of choices in every run. On the real
model `make test` answers some prompts with one setting, `make check` all prompts with every choice
once, and `make soak` every pair of choices with longer answers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import astuple
from itertools import combinations

import pytest

from .comparison import check_what_took_place, find_near_ties
from .prompts import NUM_LONG_TOKENS, NUM_TOKENS, all_prompts
from .reference import Reference, ReferenceCase
from .serving import serve
from .settings import Setting, full_product

WHOLE, CHUNKS = 1024, 40
"""Tokens per step: room for half of all prompts, and for a part of the longer ones."""
STARVED_TOKENS = 1792
"""Room in the KV cache for less than half of what all requests need."""
SETTINGS = [
    Setting(scheduler="chunked"),
    Setting(scheduler="prefill-first", block_size=32),
    Setting(scheduler="chunked", block_size=8, max_num_batched_tokens=CHUNKS),
    Setting(
        scheduler="prefill-first", block_size=8, is_starved=True, max_num_batched_tokens=CHUNKS
    ),
    Setting(scheduler="chunked", enable_prefix_caching=False, is_starved=True),
    Setting(scheduler="chunked", preemption_mode="swap", block_size=32, is_starved=True),
    Setting(
        scheduler="prefill-first",
        preemption_mode="swap",
        enable_prefix_caching=False,
        is_starved=True,
        max_num_batched_tokens=CHUNKS,
    ),
    Setting(
        scheduler="chunked",
        preemption_mode="swap",
        block_size=8,
        is_starved=True,
        max_num_batched_tokens=CHUNKS,
    ),
    Setting(
        scheduler="prefill-first", preemption_mode="swap", enable_prefix_caching=False, block_size=8
    ),
    Setting(
        scheduler="prefill-first",
        enable_prefix_caching=False,
        block_size=32,
        is_starved=True,
        max_num_batched_tokens=CHUNKS,
    ),
]
LONG_RUNNING = SETTINGS[7]
"""Here every sixth prompt has a long answer."""
QUICK = (SETTINGS[0], LONG_RUNNING, SETTINGS[9])
"""Every choice is among them."""


def test_a_few_short_answers_are_those_of_transformers(
    reference: Reference, cases: list[ReferenceCase]
) -> None:
    few = [case.shortened(6) for case in cases[2::3] if len(case.prompt_token_ids) < 100]
    served = serve(SETTINGS[2], few, STARVED_TOKENS)
    assert served.num_hit_tokens > 0
    find_near_ties(reference.gap, few, served.token_ids)


@pytest.mark.check
@pytest.mark.parametrize("setting", QUICK, ids=str)
def test_short_answers_are_those_of_transformers(
    setting: Setting, reference: Reference, cases: list[ReferenceCase]
) -> None:
    check_tokens(setting, reference, cases, 16, 80, STARVED_TOKENS // 2)


@pytest.mark.soak
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_answers_are_those_of_transformers(
    setting: Setting, reference: Reference, cases: list[ReferenceCase]
) -> None:
    check_tokens(setting, reference, cases, NUM_TOKENS, NUM_LONG_TOKENS, STARVED_TOKENS)


def check_tokens(
    setting: Setting,
    reference: Reference,
    cases: Sequence[ReferenceCase],
    num_tokens: int,
    num_long_tokens: int,
    num_starved_tokens: int,
) -> None:
    """All prompts get `num_tokens`. Where LONG_RUNNING, every sixth gets `num_long_tokens`."""
    is_long = setting == LONG_RUNNING
    shortened = [
        case.shortened(
            num_long_tokens if is_long and len(case.token_ids) > NUM_TOKENS else num_tokens
        )
        for case in cases
    ]
    chosen = random.Random(str(setting)).sample(shortened, len(shortened))
    served = serve(setting, chosen, num_starved_tokens)
    find_near_ties(reference.gap, chosen, served.token_ids)
    check_what_took_place(setting, served)


def test_every_pair_of_choices_is_among_the_settings() -> None:
    def pairs(settings: list[Setting]) -> set[object]:
        return {pair for s in settings for pair in combinations(enumerate(astuple(s)), 2)}

    assert pairs(SETTINGS) == pairs(full_product(WHOLE, CHUNKS))


def test_every_choice_is_among_the_quick_settings() -> None:
    def choices(settings: Sequence[Setting]) -> set[object]:
        return {choice for setting in settings for choice in enumerate(astuple(setting))}

    assert choices(QUICK) == choices(full_product(WHOLE, CHUNKS))


def test_the_prompts_are_as_many_and_as_long_as_the_comparison_asks_for() -> None:
    prompts = all_prompts()
    assert len(set(prompts)) >= 60
    assert sum(p.num_tokens >= 256 for p in prompts) >= 10
    assert all(p.num_tokens >= 48 for p in prompts)
