"""Every scheduler x preemption mode x prefix cache x block size x pool, and with drafts x kind of
speculator x length: the tokens are right.

Life compares every token with the oracle; here it is asserted that what could go wrong took place.
The full products and a second seed are in `make check`: 70 CPU seconds. In `make test` any four
choices meet without drafts, and any two with drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest

from tokenmill.core.engine.committing import StepCommitter
from tokenmill.core.engine.step import StepLimits
from tokenmill.core.kv_memory import max_blocks_held
from tokenmill.testing.simulated.drafting import DraftingSettings
from tokenmill.testing.simulation import Life, LifeSettings, Outcome

from .planting import Planter

CHECK = (pytest.mark.check, pytest.mark.depends_on("src/core", "src/plugins", "pyproject.toml"))
NUM_SEEDS = 2
STARVED_TOKENS = 96
"""Room in the KV cache: a little more than the longest request needs."""
AMPLE_TOKENS = 1536
"""Room for as many of the longest as may run at once."""
NUM_HOST_TOKENS = 4 * STARVED_TOKENS
"""Room in host memory for all that is ever swapped."""


def make_settings(
    scheduler: str,
    mode: str,
    caches: bool,
    block_size: int,
    is_starved: bool,
    max_inflight: int,
    drafting: DraftingSettings | None = None,
    fault_rate: float = 0.0,
) -> LifeSettings:
    num_blocks = (STARVED_TOKENS if is_starved else AMPLE_TOKENS) // block_size
    return LifeSettings(
        scheduler=scheduler,
        preemption_mode=mode,
        scheduling_policy="priority",
        block_size=block_size,
        num_blocks=num_blocks,
        num_host_blocks=NUM_HOST_TOKENS // block_size,
        max_inflight=max_inflight,
        num_requests=20,
        fault_rate=fault_rate,
        limits=StepLimits(
            max_num_seqs=16,
            max_num_batched_tokens=48,
            long_prefill_token_threshold=0,
            watermark_blocks=0,
            enable_prefix_caching=caches,
        ),
        drafting=drafting,
    )


AXES: tuple[Sequence[Any], ...] = (
    ("chunked", "prefill-first"),
    ("recompute", "swap"),
    (False, True),
    (1, 4, 8, 16),
    (False, True),
)
CHOICES = list(product(*AXES))
"""Scheduler, preemption mode, prefix caching, block size, whether memory is short."""
QUICK_CHOICES = [
    choices
    for choices in CHOICES
    if sum(axis.index(choice) for axis, choice in zip(AXES, choices, strict=True)) % 2 == 0
]
"""Every other one, so that any four choices still meet."""
DRAFTS = list(
    product(
        ("chunked", "prefill-first"),
        ("recompute", "swap"),
        (False, True),
        ("like_ngram", "like_draft_model"),
        range(1, 9),
    )
)
"""Scheduler, preemption mode, prefix caching, kind of speculator, draft length."""
QUICK_DRAFTS = DRAFTS[::3]
FAILING_SWAPS = make_settings("chunked", "swap", True, 4, True, max_inflight=2, fault_rate=0.05)
"""Steps fail also while they copy blocks out, which the random lives hardly ever come to."""


@pytest.mark.parametrize(
    ("scheduler", "mode", "caches", "block_size", "is_starved", "seed"),
    [
        pytest.param(*choices, seed, marks=() if is_quick else CHECK)
        for choices in CHOICES
        for seed in range(NUM_SEEDS)
        for is_quick in [seed == 0 and choices in QUICK_CHOICES]
    ],
)
def test_tokens_are_right_and_memory_was_short_where_it_should_be(
    scheduler: str, mode: str, caches: bool, block_size: int, is_starved: bool, seed: int
) -> None:
    total = Outcome()
    for max_inflight in (1, 2):
        settings = make_settings(scheduler, mode, caches, block_size, is_starved, max_inflight)
        total.add(Life(seed, settings).run())
    assert (total.num_preemptions > 5) is is_starved
    assert (total.num_swaps > 5) is (is_starved and mode == "swap")
    if caches and seed == 0:  # the other one draws few equal prompts
        assert total.num_hit_tokens > 0
    assert total.num_plugin_failures == 0


@pytest.mark.parametrize(
    ("scheduler", "mode", "caches", "like", "num_tokens"),
    [pytest.param(*case, marks=() if case in QUICK_DRAFTS else CHECK) for case in DRAFTS],
)
def test_drafts_change_no_token(
    scheduler: str, mode: str, caches: bool, like: str, num_tokens: int
) -> None:
    drafting = getattr(DraftingSettings, like)(num_tokens, draft_length="fixed")
    total = Outcome()
    for max_inflight in (1, 2):
        settings = make_settings(scheduler, mode, caches, 4, True, max_inflight, drafting)
        total.add(Life(num_tokens, settings).run())
    assert total.num_preemptions > 5 and (total.num_swaps > 5) is (mode == "swap")
    assert 0 < total.num_accepted_tokens < total.num_draft_tokens
    assert total.num_plugin_failures == 0


def test_any_four_choices_and_any_two_with_drafts_are_among_the_quick_cases() -> None:
    def together(cases: Sequence[tuple[object, ...]], number: int) -> set[object]:
        return {some for case in cases for some in combinations(enumerate(case), number)}

    assert together(QUICK_DRAFTS, 2) == together(DRAFTS, 2)
    assert together(QUICK_CHOICES, 4) == together(CHOICES, 4)


@pytest.mark.parametrize("window", [1, 7, 24])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_requests_are_longer_than_a_cache_that_holds_little_more_than_a_window_and_a_chunk(
    mode: str, window: int
) -> None:
    total = Outcome()
    for seed, max_inflight in product(range(NUM_SEEDS), (1, 2)):
        starved = make_settings("chunked", mode, True, 4, True, max_inflight)
        limits = replace(starved.limits, max_num_batched_tokens=8, max_num_seqs=8)
        enough = max_blocks_held(1000, block_size=4, window=window, step_tokens=8)
        settings = replace(starved, limits=limits, num_blocks=enough + 1, kv_windows=(window,))
        total.add(Life(seed, settings).run())
    assert total.num_passed_grants > 200
    assert total.num_preemptions > 10 and (total.num_swaps > 10) is (mode == "swap")
    assert total.num_hit_tokens > 0


@pytest.mark.parametrize("max_inflight", [1, 2])
def test_what_a_failed_step_should_have_copied_out_is_computed_again(
    max_inflight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    planter = Planter(monkeypatch)
    planter.setattr(StepCommitter, "_distrust_host_copy", StepCommitter._distrust_host_copy)
    for seed in range(8):
        Life(seed, replace(FAILING_SWAPS, max_inflight=max_inflight)).run()
    assert planter.unused == []
