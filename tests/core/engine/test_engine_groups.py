"""EngineCore with groups of layers, some of which have a window: blocks held, hits, copies."""

from __future__ import annotations

import pytest

from tokenmill.core.errors import InvalidRequestError
from tokenmill.core.plan import CopyDirection
from tokenmill.testing.simulated.drafting import DraftingSettings

from ..engines import Bench

WINDOWS = (None, 10, 10)
SIZE = 4
CHUNK = 8
MOST = 5
"""Blocks of 9 tokens before a chunk and 8 in it, which may begin with the last one of a block."""


def make_bench(num_blocks: int = 200, **changes: object) -> Bench:
    settings = {
        "num_blocks": num_blocks,
        "block_size": SIZE,
        "max_num_batched_tokens": CHUNK,
        "kv_windows": WINDOWS,
    }
    return Bench(**settings | changes)  # type: ignore[arg-type]


def watch(bench: Bench) -> list[int]:
    """Run to the end; returns per group the maximum number of blocks held after a step."""
    most = [0] * len(WINDOWS)
    while bench.core.has_work:
        bench.step()
        for request in bench.requests.values():
            held = [len(table.block_ids) for table in request.tables]
            most = list(map(max, most, held or most))
    bench.check_tokens()
    assert bench.core.pool.num_held == bench.core.host_pool.num_held == 0
    return most


@pytest.mark.parametrize("max_inflight", [1, 2])
@pytest.mark.parametrize("caches", [False, True])
def test_only_groups_without_a_window_hold_a_block_for_every_token(
    max_inflight: int, caches: bool
) -> None:
    bench = make_bench(50 + 2 * MOST, max_inflight=max_inflight, enable_prefix_caching=caches)
    bench.add(range(100), 101)
    assert watch(bench) == [50, MOST, MOST]
    assert bench.core.total_preemptions == 0


def test_a_request_is_admitted_if_all_its_groups_fit() -> None:
    make_bench(8 + 2 * MOST).add(range(30), 1)
    with pytest.raises(InvalidRequestError, match="need 18 KV blocks and the cache has 17"):
        make_bench(7 + 2 * MOST).add(range(30), 1)


def test_a_hit_shares_all_blocks_of_one_group_and_the_last_window_of_the_others() -> None:
    bench = make_bench()
    bench.add(range(40), 1)
    bench.run()
    bench.add(range(44), 2)
    bench.step()
    (grant,) = bench.plans[-1].grants
    assert (grant.start, grant.num_passed_blocks) == (40, (0, 7, 7))
    assert [len(ids) for ids in grant.new_block_ids] == [11, 11 - 7, 11 - 7]
    bench.run()
    bench.check_tokens()
    assert bench.requests["1"].num_cached_tokens == 40


def test_a_swap_copies_the_blocks_that_each_group_still_has() -> None:
    bench = make_bench(
        33,
        num_host_blocks=100,
        preemption_mode="swap",
        enable_prefix_caching=False,
        scheduling_policy="priority",
    )
    bench.add(range(50), 40, priority=1)
    for _ in range(12):
        bench.step()
    bench.add(range(100, 140), 30)
    watch(bench)
    copies = [c for plan in bench.plans for c in plan.copies]
    assert {c.direction for c in copies} == {CopyDirection.OUT, CopyDirection.IN}
    assert max(len(c.pairs) for c in copies) <= 90 // SIZE + 1 + 2 * 4


@pytest.mark.parametrize("like", ["like_ngram", "like_draft_model"])
def test_drafts_are_taken_and_rejected_in_all_groups(like: str) -> None:
    drafting = getattr(DraftingSettings, like)(4, draft_length="fixed")
    bench = make_bench(60 + 4 * MOST, drafting=drafting)
    bench.add(range(30), 100)
    bench.add(range(20), 100)
    # Drafts of one request, and lookahead slots behind them, may take a block more.
    assert max(watch(bench)[1:]) <= MOST + 1
    outcomes = bench.requests.values()
    assert all(0 < r.num_accepted_tokens < r.num_draft_tokens for r in outcomes)
