"""An engine whose model has stages: plans in flight have no request in common."""

from __future__ import annotations

import pytest

from tests.core.engines import Bench
from tokenmill.core.outputs import FinishReason
from tokenmill.core.plan import StepPlan
from tokenmill.testing.simulated.drafting import DraftingSettings


def names(plan: StepPlan | None) -> set[str]:
    assert plan is not None
    return {grant.engine_id for grant in plan.grants}


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_each_stage_gets_its_share_of_the_requests(num_stages: int) -> None:
    bench = Bench(num_blocks=64, num_stages=num_stages)
    for i in range(8):
        bench.add([i, 1, 2], 5)
    shares = [names(bench.plan()) for _ in range(num_stages)]
    assert [len(share) for share in shares] == {2: [4, 4], 3: [3, 3, 2], 4: [2] * 4}[num_stages]
    assert len(set.union(*shares)) == 8
    assert bench.plan() is None
    bench.commit()
    assert names(bench.plan()) == shares[0], "the requests of the committed plan are free again"
    bench.run()
    bench.check_tokens()


def test_one_request_is_in_one_plan_at_a_time() -> None:
    bench = Bench(num_stages=4)
    bench.add([1, 2, 3], 4)
    assert names(bench.plan()) == {"0"}
    assert bench.plan() is None
    bench.run()
    bench.check_tokens()


def test_a_request_that_another_stage_computes_is_not_preempted() -> None:
    """The senior request needs a block, and the junior one is in flight: it waits for its plan."""
    bench = Bench(num_blocks=4, num_stages=2, enable_prefix_caching=False)
    bench.add(range(7), 8)
    bench.add(range(7), 8)
    first, second = bench.plan(), bench.plan()
    assert (names(first), names(second)) == ({"0"}, {"1"})
    for _ in range(2):  # each then fills the last slot of its blocks
        bench.commit()
        bench.plan()
    assert bench.core.pool.num_available == 0
    bench.commit()
    assert bench.plan() is None, "request 1 is still in flight"
    assert bench.core.total_preemptions == 0
    bench.commit()
    assert names(bench.plan()) == {"0"}
    assert bench.core.total_preemptions == 1
    bench.run()
    bench.check_tokens()


def test_an_error_of_one_step_leaves_the_other_stages_requests_alone() -> None:
    bench = Bench(num_blocks=64, num_stages=2)
    for i in range(4):
        bench.add([i, 1, 2], 5)
    bench.plan()
    other = names(bench.plan())
    bench.fail()
    bench.commit()
    assert all(len(bench.tokens[name]) == 1 for name in other)
    bench.run()
    assert set(bench.reasons.values()) == {FinishReason.LENGTH}
    bench.check_tokens()


def test_an_aborted_request_keeps_its_blocks_while_its_stage_computes_it() -> None:
    bench = Bench(num_stages=2)
    bench.add([1, 2, 3], 3)
    bench.add([4, 5, 6], 3)
    bench.plan(), bench.plan()
    bench.core.abort("1", bench.now)
    bench.check()
    held = bench.core.pool.num_held
    bench.commit()
    assert bench.core.pool.num_held == held
    bench.plan()
    bench.commit()
    assert bench.core.pool.num_held < held
    bench.run()
    assert bench.reasons == {"0": FinishReason.LENGTH, "1": FinishReason.ABORT}
    bench.check_tokens()


def test_a_step_that_verifies_drafts_does_not_hold_back_another_stage() -> None:
    drafting = DraftingSettings.like_draft_model(3, draft_length="fixed")
    bench = Bench(num_blocks=64, num_stages=2, drafting=drafting)
    bench.add([1, 2, 3], 12)
    bench.add([4, 5, 6], 12)
    bench.step(), bench.step()
    plans = [bench.plan(), bench.plan()]
    assert any(g.num_draft_tokens for plan in plans if plan for g in plan.grants)
    assert len(bench.open) == 2
    bench.run()
    bench.check_tokens()
