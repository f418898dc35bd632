"""Images whose tokens see each other: one step computes them all, whatever stands in the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

import pytest

from tests.core.engines import Bench
from tokenmill.core.contract.explanation import Limit
from tokenmill.core.contract.policy import StepView
from tokenmill.core.plan import StepPlan
from tokenmill.core.requests.media import MediaItem
from tokenmill.testing.simulated.pictures import BYTES_PER_TOKEN, PLACEHOLDER

ROWS = 6
"""Tokens of an image."""
COST = 3


def make(**settings: Any) -> Bench:
    """An engine with room for ten images, whose steps have room for one."""
    options = {"max_num_batched_tokens": ROWS + 2, "max_num_seqs": 2, "block_size": 2}
    return Bench(media_bytes=10 * ROWS * BYTES_PER_TOKEN, **(options | settings))


def ask(
    bench: Bench,
    *places: int,
    names: Iterable[bytes] = repeat(b"x"),
    size: int = 0,
    max_tokens: int = 1,
    n: int = 1,
) -> None:
    """Queue a prompt of at least `size` tokens with an image at each of these places."""
    items = tuple(
        MediaItem(
            digest=name,
            start=start,
            num_tokens=ROWS,
            cost=COST,
            shape=(),
            pixels=name,
            is_whole=True,
        )
        for start, name in zip(places, names, strict=False)
    )
    prompt = list(range(20, 20 + max(size, max((item.end for item in items), default=0))))
    for item in items:
        prompt[item.start : item.end] = [PLACEHOLDER] * ROWS
    bench.add(prompt, max_tokens, media=items, n=n)


def ends(plans: Sequence[StepPlan], name: str = "0") -> list[int]:
    """Where each grant of a request ends."""
    grants = [grant for plan in plans for grant in plan.grants if grant.engine_id == name]
    return [grant.start + grant.num_tokens for grant in grants]


def check(bench: Bench) -> None:
    """No grant cuts an image, and all tokens are right."""
    for plan in bench.plans:
        for grant in plan.grants:
            for item in bench.requests[grant.engine_id].media:
                for cut in (grant.start, grant.start + grant.num_tokens):
                    assert not item.start < cut < item.end
    bench.check_tokens()


def offering(most: int) -> Callable[[StepView], None]:
    """A policy that offers each request few tokens."""

    def schedule(step: StepView) -> None:
        for request in (*step.running, *step.waiting):
            step.schedule(request, most)

    return schedule


def limiting(most: int) -> Callable[[StepView], None]:
    """A policy that limits each request, as a wrapper does."""

    def schedule(step: StepView) -> None:
        for request in (*step.running, *step.waiting):
            step.limit(request, most)
            step.schedule(request)

    return schedule


def test_a_chunk_ends_before_an_image_that_it_would_cut() -> None:
    bench = make()
    ask(bench, 5, 11, size=20)
    bench.run()
    assert ends(bench.plans) == [5, 11, 19, 20]
    check(bench)


@pytest.mark.parametrize("policy", [offering, limiting])
def test_a_policy_that_offers_less_than_an_image_gets_the_whole_image(
    policy: Callable[[int], Callable[[StepView], None]],
) -> None:
    bench = make(schedule=policy(2))
    ask(bench, 3, size=12)
    bench.run()
    assert ends(bench.plans) == [2, 3, 9, 11, 12]
    check(bench)


def test_a_policy_that_offers_an_image_nothing_is_obeyed() -> None:
    def schedule(step: StepView) -> None:
        for request in step.waiting:
            step.schedule(request, 0 if request.engine_id == "0" else None)

    bench = make(schedule=schedule)
    ask(bench, 0)
    ask(bench, size=2)
    plan = bench.plan()
    assert plan is not None and [grant.engine_id for grant in plan.grants] == ["1"]


def test_an_image_that_does_not_fit_into_the_rest_of_a_step_is_computed_in_the_next() -> None:
    bench = make()
    ask(bench, size=4)
    ask(bench, 0, size=8)
    bench.plan()
    assert bench.core.log is not None
    assert bench.core.log.limit_of("1") is Limit.SPAN
    bench.commit()
    bench.run()
    assert ends(bench.plans[:1], "1") == [] and ends(bench.plans[1:2], "1") == [ROWS]
    check(bench)


def test_decodes_leave_room_for_an_image() -> None:
    """As many decodes as may be, and the smallest budget that the start allows."""
    bench = make(max_num_seqs=4, max_num_batched_tokens=ROWS + 4, num_blocks=64)
    for _ in range(3):
        ask(bench, size=2, max_tokens=30)
    bench.step()
    ask(bench, 0, size=7)
    bench.step()
    assert ends(bench.plans[1:2], "3") == [ROWS]


@pytest.mark.parametrize(("budget", "expected"), [(15, [8, 14]), (19, [8, 14]), (20, [14])])
def test_the_cost_of_encoding_moves_an_image_to_the_next_step(
    budget: int, expected: Sequence[int]
) -> None:
    bench = make(max_num_batched_tokens=budget)
    ask(bench, 1, 8, names=(b"x", b"y"))
    bench.run()
    assert ends(bench.plans) == expected
    check(bench)


@pytest.mark.parametrize(
    ("places", "cached"),
    [((5,), 4), ((4,), 4), ((5, 11), 4), ((1, 7), 0), ((3,), 2), ((14,), 14)],
)
def test_a_hit_ends_before_an_image_that_it_would_cut(places: Sequence[int], cached: int) -> None:
    """Of the second prompt the last token is computed, and what stands before it in its image."""
    bench = make(max_num_batched_tokens=32)
    for _ in range(2):
        ask(bench, *places, size=0)
        bench.run()
    starts = [plan.grants[0].start for plan in bench.plans]
    assert starts == [0, cached]
    check(bench)


def test_a_hit_may_end_behind_an_image() -> None:
    bench = make(max_num_batched_tokens=32)
    for _ in range(2):
        ask(bench, 4, size=13)
        bench.run()
    assert [plan.grants[0].start for plan in bench.plans] == [0, 12]


@pytest.mark.parametrize("window", [None, 3, 20])
@pytest.mark.parametrize("num_choices", [1, 3])
def test_choices_windows_and_stages_compute_whole_images(
    window: int | None, num_choices: int
) -> None:
    bench = make(
        kv_windows=(None, window), num_stages=2, max_inflight=2, max_num_seqs=3, num_blocks=80
    )
    ask(bench, 3, 12, 18, size=26, max_tokens=5, n=num_choices)
    ask(bench, 3, 9, 18, size=25, max_tokens=5)
    bench.run()
    assert len(bench.reasons) == num_choices + 1
    check(bench)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_a_preempted_request_comes_back_before_its_image(mode: str) -> None:
    bench = make(num_blocks=12, num_host_blocks=12, max_num_batched_tokens=16, preemption_mode=mode)
    ask(bench, 3, size=10, max_tokens=9)
    ask(bench, 4, size=11, max_tokens=9)
    bench.run()
    assert bench.core.total_preemptions
    check(bench)
