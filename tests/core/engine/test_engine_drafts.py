"""EngineCore with drafts: what is verified, what is asked for, what comes of it."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.core.contract.events import StepDone
from tokenmill.core.contract.policy import StepView
from tokenmill.core.contract.providers.speculation import SpeculationLimits
from tokenmill.core.engine.draft_planning import DraftPlanner
from tokenmill.core.outputs import FinishReason
from tokenmill.core.plan import StepPlan
from tokenmill.testing.simulated.drafting import DraftingSettings
from tokenmill.testing.simulated.executor import expected_tokens

from ..engines import Bench, seed_of


def drafting(
    num_tokens: int = 4, *, accuracy: float = 1.0, lookahead: bool = False, eagerness: float = 1.0
) -> DraftingSettings:
    """Fixed lengths; the simulated speculator proposes from 1 to `num_tokens` tokens."""
    return DraftingSettings(
        limits=SpeculationLimits(num_speculative_tokens=num_tokens, needs_lookahead=lookahead),
        draft_length="fixed",
        accuracy=accuracy,
        eagerness=eagerness,
    )


def drafted(plan: StepPlan) -> list[int]:
    return [grant.num_draft_tokens for grant in plan.grants]


def test_right_drafts_save_steps_and_wrong_ones_cost_none() -> None:
    lengths = []
    for settings in (drafting(accuracy=1.0), drafting(accuracy=0.0), None):
        bench = Bench(drafting=settings)
        bench.add([1, 2, 3], 30)
        bench.run()
        bench.check_tokens()
        lengths.append(len(bench.plans))
    assert lengths[0] < lengths[1] == lengths[2] == 30


def test_a_step_verifies_what_was_proposed_after_the_one_before() -> None:
    bench = Bench(drafting=drafting(1))
    bench.add([1, 2, 3], 9)
    bench.run()
    assert [drafted(plan) for plan in bench.plans] == [[0], [1], [1], [1], [1]]
    assert [plan.grants[0].start for plan in bench.plans] == [0, 3, 5, 7, 9]


@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_nothing_is_computed_or_asked_for_beyond_max_tokens(
    max_tokens: int, lookahead: bool
) -> None:
    bench = Bench(drafting=drafting(8, lookahead=lookahead))
    bench.add([1, 2, 3], max_tokens)
    bench.run()
    bench.check_tokens()
    assert bench.reasons["0"] is FinishReason.LENGTH
    last = bench.plans[-1].grants[0]
    assert last.start + last.num_tokens <= 3 + max_tokens - 1 and not last.max_draft_tokens


def test_drafts_do_not_pass_the_longest_sequence() -> None:
    bench = Bench(drafting=drafting(8), max_model_len=14)
    bench.add([1, 2, 3], 50)
    bench.run()
    assert len(bench.tokens["0"]) == 11
    assert all(g.start + g.num_tokens < 14 for plan in bench.plans for g in plan.grants)


@pytest.mark.parametrize("index", range(9))
def test_a_stop_token_inside_an_accepted_run_ends_it_there(index: int) -> None:
    tokens = expected_tokens([5, 6], 12, seed_of("0"), 1000)
    assert tokens.index(tokens[index]) == index, "it would end earlier"
    bench = Bench(drafting=drafting(8))
    bench.add([5, 6], 12, eos_token_ids=(tokens[index],))
    bench.run()
    assert bench.tokens["0"] == tokens[: index + 1]
    assert bench.reasons["0"] is FinishReason.STOP
    assert bench.core.pool.num_held == 0


def test_blocks_with_rejected_drafts_are_never_found() -> None:
    bench = Bench(drafting=drafting(8, accuracy=0.5), block_size=2)
    bench.add(range(8), 12)
    bench.run()
    again = [*range(8), *bench.tokens["0"], 7]
    bench.add(again, 3)
    bench.run()
    bench.check_tokens()
    assert bench.requests["1"].num_cached_tokens == 18  # the last token's KV was never computed


def test_decodes_get_their_token_before_anyone_gets_drafts() -> None:
    bench = Bench(num_blocks=64, drafting=drafting(8), max_num_batched_tokens=8)
    for i in range(6):
        bench.add([i], 20)
    num_drafted = 0
    while bench.core.has_work:
        plan = bench.plan()
        assert plan is not None and plan.num_tokens <= 8
        num_drafted += sum(drafted(plan))
        assert not any(drafted(plan)) or len(plan.grants) == bench.core.num_running
        bench.commit()
    bench.check_tokens()
    assert num_drafted > 0


def test_the_most_senior_gets_drafts_first() -> None:
    bench = Bench(num_blocks=64, drafting=drafting(8), max_num_batched_tokens=6)
    for i in range(4):
        bench.add([i], 20)
    bench.run()
    bench.check_tokens()
    for plan in bench.plans[4:8]:
        got = {g.engine_id: g.num_draft_tokens for g in plan.grants}
        assert got.get("0", 0) >= got.get("3", 0)


def test_drafts_preempt_nobody_and_keep_the_watermark() -> None:
    bench = Bench(
        num_blocks=10, block_size=2, watermark_blocks=2, drafting=drafting(8, lookahead=True)
    )
    for i in range(2):
        bench.add([i, i], 8)
    while bench.core.has_work:
        plan = bench.plan()
        if plan is not None and any(g.gives_back for g in plan.grants):
            assert bench.core.pool.num_available >= 2
        bench.commit()
    bench.check_tokens()
    assert bench.core.total_preemptions == 0
    assert sum(r.num_accepted_tokens for r in bench.requests.values()) > 0


def test_lookahead_lasts_for_one_step_only() -> None:
    bench = Bench(block_size=1, num_blocks=64, drafting=drafting(4, lookahead=True, eagerness=0.0))
    bench.add([1, 2, 3], 20)
    plan = bench.plan()
    assert plan is not None
    grant = plan.grants[0]
    assert (grant.max_draft_tokens, grant.num_lookahead_tokens) == (4, 5)
    assert bench.core.pool.num_held == 8
    bench.commit()
    assert bench.core.pool.num_held == 4  # the sampled token keeps its slot
    bench.run()
    bench.check_tokens()


def test_drafts_are_shortened_to_the_lookahead_that_is_free() -> None:
    bench = Bench(block_size=1, num_blocks=7, drafting=drafting(4, lookahead=True))
    bench.add([1, 2, 3], 4)
    plan = bench.plan()
    assert plan is not None and plan.grants[0].max_draft_tokens == 2  # max_tokens allows no more
    bench.run()
    other = Bench(block_size=1, num_blocks=8, drafting=drafting(4, lookahead=True))
    for first in (1, 2):
        other.add([first, 2, 3], 4)
    plan = other.plan()
    assert plan is not None
    assert [(g.max_draft_tokens, g.num_lookahead_tokens) for g in plan.grants] == [(1, 2), (0, 0)]
    other.run()
    other.check_tokens()


def test_plans_run_ahead_only_while_nobody_has_drafts() -> None:
    bench = Bench(max_inflight=2, drafting=drafting(4, eagerness=0.0))
    bench.add([1, 2, 3], 6)
    assert bench.plan() and bench.plan()
    bench.run()
    eager = Bench(max_inflight=2, drafting=drafting(4))
    eager.add([1, 2, 3], 20)
    assert eager.plan() and eager.plan()  # the first drafts are not known yet
    eager.commit()
    assert eager.plan() is None  # those of the first step: the second one's will be verified
    eager.commit()
    plan = eager.plan()
    assert plan is not None and drafted(plan) != [0]
    assert eager.plan() is None
    eager.run()
    eager.check_tokens()


def test_drafts_that_will_be_dropped_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(max_inflight=2, drafting=drafting(4))
    bench.add([1, 2, 3], 20)
    assert bench.plan()
    monkeypatch.setattr(
        bench.plugins.draft_length, "choose", lambda requests, limits: [0] * len(requests)
    )
    assert bench.plan()
    bench.commit()
    assert bench.requests["0"].num_proposed_tokens
    plan = bench.plan()
    assert plan is not None and drafted(plan) == [0]
    bench.run()
    bench.check_tokens()


@pytest.mark.parametrize("asks_behind_drafts", [False, True])
def test_what_a_step_took_is_told_from_the_end_of_the_one_before(
    asks_behind_drafts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not somebody asked for a plan while that one was open."""
    told: list[tuple[bool, float]] = []
    monkeypatch.setattr(
        DraftPlanner,
        "observe",
        lambda self, plan, result, seconds, was_held_back: told.append(
            (was_held_back, round(seconds, 3))
        ),
    )
    bench = Bench(max_inflight=2, drafting=drafting(1))
    for number in range(2):
        bench.now += 100.0  # idle
        bench.add([number], 6)
        while bench.core.has_work:
            if not bench.open:
                bench.now += 0.001
                bench.plan()
            if asks_behind_drafts or not drafted(bench.open[-1])[0]:
                bench.plan()
            bench.now += 0.010
            bench.commit()
    bench.check_tokens()
    verified = [any(drafted(plan)) for plan in bench.plans]
    behind = [False, *verified[:-1]]
    first = [plan.grants[0].start == 0 for plan in bench.plans]
    assert sum(verified) >= 4
    for (was_held_back, seconds), is_behind, is_first in zip(told, behind, first, strict=True):
        if is_first:
            assert not was_held_back and seconds == 0.010
        elif is_behind:
            assert was_held_back and seconds == 0.011


def test_a_draft_model_never_runs_ahead() -> None:
    bench = Bench(max_inflight=2, drafting=drafting(4, lookahead=True, eagerness=0.0))
    bench.add([1, 2, 3], 20)
    assert bench.plan() is not None
    assert bench.plan() is None


def test_a_preempted_request_starts_again_without_its_drafts() -> None:
    bench = Bench(num_blocks=10, enable_prefix_caching=False, drafting=drafting(4, accuracy=0.7))
    for i in range(4):
        bench.add(range(i, i + 6), 20)
    bench.run()
    bench.check_tokens()
    assert bench.core.total_preemptions > 0
    starts = {(p.step_id, s.engine_id) for p in bench.plans for s in p.starts}
    for plan in bench.plans:
        for grant in plan.grants:
            if (plan.step_id, grant.engine_id) in starts:
                assert not grant.num_draft_tokens


def test_a_limit_on_a_request_limits_its_drafts() -> None:
    def schedule(step: StepView) -> None:
        for request in (*step.running, *step.waiting):
            step.limit(request, 3)
            step.schedule(request)

    bench = Bench(drafting=drafting(8), schedule=schedule)
    bench.add([1, 2], 20)
    bench.run()
    assert max(g.num_tokens for plan in bench.plans for g in plan.grants) == 3


def test_the_budget_that_is_left_may_be_used_to_catch_up() -> None:
    bench = Bench(drafting=drafting(4, lookahead=True), max_num_batched_tokens=16)
    bench.add(range(10), 5)
    plan = bench.plan()
    assert plan is not None and plan.draft_token_budget == 6
    silent = Bench(max_num_batched_tokens=16)
    silent.add(range(10), 5)
    plan = silent.plan()
    assert plan is not None and plan.draft_token_budget == 0


def test_drafts_are_counted_per_step_and_per_request(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[StepDone] = []
    bench = Bench(drafting=drafting(3, accuracy=0.6))
    plugins: Any = bench.plugins
    monkeypatch.setattr(plugins, "observes", lambda event: event is StepDone)
    monkeypatch.setattr(
        plugins, "emit", lambda event: events.append(event) if type(event) is StepDone else None
    )
    bench.add([1, 2, 3], 40)
    bench.run()
    request = bench.requests["0"]
    num_drafts = sum(any(drafted(plan)) for plan in bench.plans)
    assert sum(e.num_drafts for e in events) == num_drafts > 0
    assert request.num_draft_tokens == sum(e.num_draft_tokens for e in events)
    assert request.num_accepted_tokens == sum(e.num_accepted_tokens for e in events) > 0
    assert sum(sum(e.accepted_tokens_per_pos) for e in events) == request.num_accepted_tokens
    assert all(len(e.accepted_tokens_per_pos) <= 3 for e in events)
    assert request.num_generated_tokens == len(bench.plans) + request.num_accepted_tokens


def test_an_aborted_request_with_drafts_in_flight_gives_everything_back() -> None:
    bench = Bench(drafting=drafting(4, lookahead=True))
    bench.add([1, 2, 3], 20)
    bench.step()
    bench.plan()
    bench.core.abort("0", bench.now)
    bench.check()
    bench.commit()
    assert bench.core.pool.num_held == 0


def test_a_failed_step_takes_its_drafts_with_it() -> None:
    bench = Bench(drafting=drafting(4, accuracy=0.5))
    bench.add([1, 2, 3], 20)
    bench.step()
    bench.plan()
    bench.add([4, 5, 6], 20)
    bench.fail()
    bench.run()
    bench.check_tokens()
    assert bench.reasons == {"0": FinishReason.ERROR, "1": FinishReason.LENGTH}
