"""Greedy fp32 output is transformers' own, token for token, whatever engine and memory do."""

from __future__ import annotations

import random
from dataclasses import astuple
from itertools import combinations

import pytest

from .comparison import check_what_took_place, find_near_ties
from .prompts import NUM_TOKENS, all_prompts
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
LONG_RUNNING = SETTINGS[5]
"""Here the prompts that have it run to 256 tokens, not only to 48."""


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_tokens_are_those_of_transformers(
    setting: Setting, reference: Reference, cases: list[ReferenceCase]
) -> None:
    is_long = setting == LONG_RUNNING
    chosen = cases if is_long else [case.shortened(NUM_TOKENS) for case in cases]
    chosen = random.Random(str(setting)).sample(chosen, len(chosen))
    served = serve(setting, chosen, STARVED_TOKENS)
    find_near_ties(reference.model, chosen, served.token_ids)
    check_what_took_place(setting, served)


def test_every_pair_of_choices_is_among_the_settings() -> None:
    def pairs(settings: list[Setting]) -> set[object]:
        return {pair for s in settings for pair in combinations(enumerate(astuple(s)), 2)}

    assert pairs(SETTINGS) == pairs(full_product(WHOLE, CHUNKS))


def test_the_prompts_are_as_many_and_as_long_as_the_comparison_asks_for() -> None:
    prompts = all_prompts()
    assert len(set(prompts)) >= 60
    assert sum(p.num_tokens >= 256 for p in prompts) >= 10
    assert all(p.num_tokens >= 48 for p in prompts)
