"""EngineCore with a window: what a request holds, what is admitted, found again and copied."""

from __future__ import annotations

import pytest

from tokenmill.core.errors import InvalidRequestError
from tokenmill.core.plan import CopyDirection
from tokenmill.testing.simulated.drafting import DraftingSettings

from ..engines import Bench

WINDOW = 10
SIZE = 4
CHUNK = 8
MOST = 5
"""Blocks of 9 tokens before a chunk and 8 in it, which may begin with the last one of a block."""


def make_bench(num_blocks: int = MOST, **changes: object) -> Bench:
    settings = {
        "num_blocks": num_blocks,
        "block_size": SIZE,
        "max_num_batched_tokens": CHUNK,
        "kv_windows": (WINDOW,),
    }
    return Bench(**settings | changes)  # type: ignore[arg-type]


def run_and_watch(bench: Bench) -> int:
    """Run to the end; returns the maximum number of blocks that were held after a step."""
    most = 0
    while bench.core.has_work:
        bench.step()
        most = max(most, bench.core.pool.num_held)
    bench.check_tokens()
    return most


@pytest.mark.parametrize("max_inflight", [1, 2])
@pytest.mark.parametrize("caches", [False, True])
def test_a_long_prompt_and_its_output_need_the_blocks_of_a_window_and_a_chunk(
    max_inflight: int, caches: bool
) -> None:
    bench = make_bench(max_inflight=max_inflight, enable_prefix_caching=caches)
    bench.add(range(100), 100)
    assert run_and_watch(bench) == MOST
    assert bench.core.total_preemptions == 0
    assert bench.core.pool.num_held == 0


def test_a_decoding_request_holds_the_blocks_of_its_window() -> None:
    bench = make_bench(num_blocks=100)
    bench.add(range(6), 60)
    assert run_and_watch(bench) == 3


def test_without_a_window_every_block_is_kept() -> None:
    bench = make_bench(num_blocks=100, kv_windows=(None,))
    bench.add(range(100), 101)
    assert run_and_watch(bench) == 50


@pytest.mark.parametrize(("num_blocks", "is_admitted"), [(MOST, True), (MOST - 1, False)])
def test_a_request_is_admitted_if_its_window_and_a_chunk_fit(
    num_blocks: int, is_admitted: bool
) -> None:
    bench = make_bench(num_blocks)
    if is_admitted:
        bench.add(range(30), 1)
    else:
        with pytest.raises(InvalidRequestError, match=f"need {MOST} KV blocks and the cache has"):
            bench.add(range(30), 1)


def test_blocks_behind_the_window_stay_in_the_prefix_cache_until_they_are_evicted() -> None:
    bench = make_bench(num_blocks=100)
    bench.add(range(40), 5)
    bench.run()
    bench.add(range(13), 1)
    bench.run()
    assert bench.requests["1"].num_cached_tokens == 12
    bench.check_tokens()


def test_a_prompt_is_found_again_by_its_last_window_alone() -> None:
    bench = make_bench()
    bench.add(range(40), 5)
    bench.run()
    bench.add(range(44), 5)
    bench.add(range(9), 1)
    bench.run()
    bench.check_tokens()
    cached = [bench.requests[name].num_cached_tokens for name in ("1", "2")]
    assert cached == [40, 0], "the beginning was evicted, and the last blocks were not"


def test_a_hit_takes_no_blocks_behind_the_window() -> None:
    bench = make_bench(num_blocks=100)
    bench.add(range(40), 1)
    bench.run()
    (request,) = bench.add(range(44), 2)
    bench.step()
    (grant,) = bench.plans[-1].grants
    assert (grant.start, grant.num_passed_blocks) == (40, (7,))
    assert [len(ids) for ids in grant.new_block_ids] == [11 - 7]
    bench.run()
    bench.check_tokens()
    assert request.num_cached_tokens == 40


def test_choices_of_one_prompt_share_the_blocks_of_its_window() -> None:
    bench = make_bench(num_blocks=3 * MOST, enable_prefix_caching=False)
    bench.add(range(40), 30, n=3)
    run_and_watch(bench)
    starts = {start.engine_id for plan in bench.plans for start in plan.starts}
    begin = {g.engine_id: g.start for p in reversed(bench.plans) for g in p.grants}
    assert begin == dict(zip(sorted(starts), (0, 36, 36), strict=True))


def test_a_swap_copies_only_the_blocks_in_the_window() -> None:
    bench = make_bench(
        num_blocks=7,
        num_host_blocks=100,
        preemption_mode="swap",
        enable_prefix_caching=False,
        scheduling_policy="priority",
    )
    bench.add(range(50), 40, priority=1)
    for _ in range(12):
        bench.step()
    bench.add(range(100, 140), 30)
    run_and_watch(bench)
    copies = [c for plan in bench.plans for c in plan.copies]
    assert {c.direction for c in copies} == {CopyDirection.OUT, CopyDirection.IN}
    assert max(len(c.pairs) for c in copies) <= 4
    assert bench.core.host_pool.num_held == 0


@pytest.mark.parametrize("like", ["like_ngram", "like_draft_model"])
def test_rejected_drafts_do_not_move_the_window(like: str) -> None:
    drafting = getattr(DraftingSettings, like)(4, draft_length="fixed")
    bench = make_bench(num_blocks=2 * MOST, drafting=drafting)
    bench.add(range(30), 100)
    bench.add(range(20), 100)
    run_and_watch(bench)
    outcomes = bench.requests.values()
    assert all(0 < r.num_accepted_tokens < r.num_draft_tokens for r in outcomes)


def test_an_aborted_request_gives_back_what_it_has_left() -> None:
    bench = make_bench(num_blocks=20, max_inflight=2)
    bench.add(range(60), 10)
    for _ in range(4):
        bench.plan()
        bench.plan()
        bench.commit()
    bench.core.abort("0", bench.now)
    bench.check()
    assert bench.core.pool.num_held > 0, "an open plan still uses its blocks"
    bench.commit()
    assert bench.core.pool.num_held == 0
