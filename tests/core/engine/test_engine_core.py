"""EngineCore: what is planned, what is refused, how requests end."""

from __future__ import annotations

import pytest

from tokenmill.core import kinds
from tokenmill.core.contract.events import Refused
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.policy import Refusal, RequestView, StepView
from tokenmill.core.contract.registry import Registry
from tokenmill.core.engine.planning import STARVATION_STEPS
from tokenmill.core.errors import InvalidRequestError, OverloadedError, RateLimitedError
from tokenmill.core.outputs import FinishReason
from tokenmill.core.plan import StepPlan
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.testing.simulated.executor import expected_tokens

from ..engines import Bench, seed_of
from ..hook_stats import stats_of


def test_a_request_runs_to_its_length_and_gives_back_every_block() -> None:
    bench = Bench()
    bench.add([1, 2, 3, 4, 5], 7)
    bench.run()
    bench.check_tokens()
    assert bench.reasons == {"0": FinishReason.LENGTH}
    assert bench.core.pool.num_held == 0


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    bench = Bench(max_num_batched_tokens=4)
    bench.add(range(10), 2)
    bench.run()
    assert [plan.num_tokens for plan in bench.plans] == [4, 4, 2, 1]
    assert [plan.grants[0].samples for plan in bench.plans] == [False, False, True, True]
    bench.check_tokens()


def test_decodes_of_many_requests_share_one_step() -> None:
    bench = Bench()
    for i in range(4):
        bench.add([i, i + 1], 5)
    bench.run()
    assert len(bench.plans) == 5
    assert all(len(plan.grants) == 4 for plan in bench.plans)


def test_the_starved_pool_preempts_and_the_tokens_stay_the_same() -> None:
    bench = Bench(num_blocks=10, enable_prefix_caching=False)
    for i in range(4):
        bench.add(range(i, i + 6), 20)
    bench.run()
    bench.check_tokens()
    assert bench.core.total_preemptions > 0
    assert set(bench.reasons.values()) == {FinishReason.LENGTH}


def test_the_last_come_is_preempted_and_comes_back_before_newer_ones() -> None:
    bench = Bench(num_blocks=6, block_size=2, enable_prefix_caching=False)
    for i in range(3):
        bench.add([i, i], 8)
    while not any(request.is_preempted for request in bench.requests.values()):
        bench.step()
    assert [name for name, one in bench.requests.items() if one.is_preempted] == ["2"]
    num_before = len(bench.plans)
    bench.add([3, 3], 8)  # it arrives while the preempted one waits
    bench.run()
    later = [grant.engine_id for plan in bench.plans[num_before:] for grant in plan.grants]
    assert later.index("2") < later.index("3")
    bench.check_tokens()


def test_equal_prompts_share_blocks_and_still_compute_their_last_token() -> None:
    bench = Bench()
    bench.add(range(8), 3)
    bench.run()
    bench.add(range(8), 3)
    bench.run()
    assert bench.requests["1"].num_cached_tokens == 4
    bench.check_tokens()


def test_another_salt_shares_nothing() -> None:
    bench = Bench()
    bench.add(range(8), 3, salt="a")
    bench.run()
    bench.add(range(8), 3, salt="b")
    bench.run()
    assert bench.requests["1"].num_cached_tokens == 0


@pytest.mark.parametrize("caching", [True, False])
def test_siblings_wait_for_the_common_prompt_and_then_share_it(caching: bool) -> None:
    bench = Bench(enable_prefix_caching=caching, max_num_batched_tokens=8)
    bench.add(range(17), 4, n=3)
    first = bench.step()
    assert first is not None and [g.engine_id for g in first.grants] == ["0/0"]
    bench.run()
    bench.check_tokens()
    assert [r.num_cached_tokens for r in bench.requests.values()] == [0, 16, 16]
    assert len({tuple(t) for t in bench.tokens.values()}) == 3


def test_a_sibling_leads_when_the_leader_is_aborted() -> None:
    bench = Bench(max_num_batched_tokens=4)
    bench.add(range(12), 4, n=2)
    bench.step()
    bench.core.abort("0/0", bench.now)
    bench.run()
    assert bench.reasons == {"0/0": FinishReason.ABORT, "0/1": FinishReason.LENGTH}
    bench.check_tokens()


def test_an_eos_token_ends_a_request_unless_it_is_ignored() -> None:
    prompt, seed_tokens = [5, 6], expected_tokens([5, 6], 4, seed_of("0"), 1000)
    bench = Bench()
    bench.add(prompt, 10, eos_token_ids=(seed_tokens[3],))
    bench.run()
    assert (bench.reasons["0"], len(bench.tokens["0"])) == (FinishReason.STOP, 4)
    ignoring = Bench()
    ignoring.add(
        prompt, 10, eos_token_ids=(seed_tokens[3],), params=SamplingParams(ignore_eos=True)
    )
    ignoring.run()
    assert ignoring.reasons["0"] is FinishReason.LENGTH


def test_stops_do_not_count_before_min_tokens() -> None:
    tokens = expected_tokens([5, 6], 4, seed_of("0"), 1000)
    bench = Bench()
    bench.add(
        [5, 6], 10, params=SamplingParams(min_tokens=4, stop_token_ids=(tokens[1], tokens[3]))
    )
    bench.run()
    assert bench.tokens["0"] == tokens


def test_a_request_that_can_never_fit_is_refused_at_once_with_the_numbers() -> None:
    bench = Bench(num_blocks=4, block_size=4)
    with pytest.raises(InvalidRequestError, match=r"need 5 KV blocks and the cache has 4"):
        bench.add(range(10), 8)
    bench.add(range(10), 7)  # the last generated token needs no room
    bench.run()
    assert bench.reasons["0"] is FinishReason.LENGTH


def test_a_full_queue_refuses_and_holds_nothing() -> None:
    bench = Bench(max_num_queued_reqs=2)
    bench.add([1], 1)
    with pytest.raises(OverloadedError, match="max-num-queued-reqs"):
        bench.add([1], 1, n=2)
    assert bench.core.num_waiting == 1


def test_observers_see_what_was_refused_and_by_whom() -> None:
    class Doorkeeper:
        def __init__(self) -> None:
            self.seen: list[Refused] = []

        @hookimpl
        def admit(self, request: RequestView) -> Refusal | None:
            if 3 not in request.prompt_token_ids:
                return None
            return Refusal(reason="too long", retry_after=7.0, is_rate_limit=True)

        @hookimpl
        def on_refused(self, event: Refused) -> None:
            self.seen.append(event)

    door = Doorkeeper()
    bench = Bench(max_num_queued_reqs=1, plugins=[door])
    with pytest.raises(RateLimitedError, match="too long") as refused:
        bench.add([1, 2, 3], 5)
    assert refused.value.retry_after == 7.0
    bench.add([1], 1)
    with pytest.raises(OverloadedError, match="max-num-queued-reqs"):
        bench.add([1], 1)
    by_plugin, by_queue = door.seen
    assert (by_plugin.plugin, by_plugin.reason, by_plugin.is_rate_limit) == (
        "Doorkeeper", "too long", True
    )  # fmt: skip
    assert (by_plugin.num_prompt_tokens, by_plugin.max_tokens, by_plugin.n) == (3, 5, 1)
    assert (by_queue.plugin, by_queue.is_rate_limit) == (None, False)
    assert "(--max-num-queued-reqs)" in by_queue.reason


def test_a_priority_is_refused_where_it_would_have_no_effect() -> None:
    with pytest.raises(InvalidRequestError, match="priority"):
        Bench().add([1], 1, priority=1)


def test_a_more_urgent_request_takes_the_place_of_a_less_urgent_one() -> None:
    bench = Bench(num_blocks=4, block_size=4, scheduling_policy="priority")
    bench.add(range(12), 4, priority=5)
    bench.step()
    bench.add(range(100, 110), 4, priority=1)
    bench.step()
    assert bench.requests["0"].is_preempted
    bench.run()
    bench.check_tokens()
    assert bench.requests["1"].last_token_time < bench.requests["0"].last_token_time  # type: ignore[operator]


def test_a_deadline_ends_a_request_with_what_it_has() -> None:
    bench = Bench()
    bench.add([1, 2], 50, deadline=0.055)
    bench.run()
    assert bench.reasons["0"] is FinishReason.ABORT
    assert 0 < len(bench.tokens["0"]) < 50


def test_a_failed_step_ends_its_own_requests_only() -> None:
    bench = Bench(max_num_seqs=1)
    bench.add([1, 2], 3)
    bench.add([3, 4], 3)
    bench.plan()
    bench.fail()
    bench.run()
    assert bench.reasons == {"0": FinishReason.ERROR, "1": FinishReason.LENGTH}
    bench.check_tokens()


def run_with_culprits(bench: Bench, culprits: set[str], position: int = 0) -> list[StepPlan]:
    """Run; each step fails that computes the culprits' token at `position`. Returns those steps."""
    failed = []
    while bench.core.has_work:
        bench.now += 0.01
        while bench.plan() is not None:
            pass
        plan = bench.open[0]
        computed = bench.executor.computes(plan)  # type: ignore[attr-defined]
        if any(
            g.engine_id in culprits and g.start <= position < g.start + g.num_tokens
            for g in computed
        ):
            failed.append(plan)
            bench.fail()
        else:
            bench.commit()
    return failed


@pytest.mark.parametrize("max_inflight", [1, 2])
@pytest.mark.parametrize("position", [0, 7])
@pytest.mark.parametrize("culprits", [{"5"}, {"0", "7"}, set("01234567")])
def test_only_the_requests_that_make_a_step_fail_end_with_an_error(
    culprits: set[str], position: int, max_inflight: int
) -> None:
    bench = Bench(num_blocks=64, max_inflight=max_inflight)
    for i in range(8):
        bench.add([i, 1, 2, 3], 10)
    failed = run_with_culprits(bench, culprits, position)
    errors = {name for name, reason in bench.reasons.items() if reason is FinishReason.ERROR}
    assert errors == culprits
    assert len(failed) <= 2 * 8 + 1
    bench.check_tokens()
    assert bench.core.pool.num_held == 0


def test_a_request_that_ended_while_its_step_ran_may_be_the_culprit() -> None:
    bench = Bench()
    bench.add([1, 2], 3)
    bench.add([3, 4], 3)
    bench.plan()
    bench.core.abort("1", bench.now)
    bench.fail()
    bench.run()
    assert bench.reasons == {"0": FinishReason.LENGTH, "1": FinishReason.ABORT}
    bench.check_tokens()


def test_choices_that_wait_for_their_prompt_are_repeated_without_it() -> None:
    bench = Bench(num_blocks=64)
    bench.add(range(9), 6, n=4)
    names = list(bench.requests)
    failed = run_with_culprits(bench, {names[0]}, 11)
    assert len(failed) >= 3
    assert [bench.reasons[name] for name in names] == [
        FinishReason.ERROR,
        *[FinishReason.LENGTH] * 3,
    ]
    bench.check_tokens()


def test_suspects_without_room_let_the_other_requests_go_on() -> None:
    """Their prompts were computed in chunks, so that beginning again needs more blocks."""
    bench = Bench(num_blocks=12, max_num_batched_tokens=16, kv_windows=(6,))
    for i in range(3):
        bench.add([i, *range(12)], 8)
    failed = run_with_culprits(bench, {"1"}, 15)
    assert failed
    assert [bench.reasons[name] for name in "012"] == [
        FinishReason.LENGTH,
        FinishReason.ERROR,
        FinishReason.LENGTH,
    ]
    bench.check_tokens()


def test_blocks_of_a_failed_step_are_never_found() -> None:
    bench = Bench()
    bench.add(range(9), 3)
    bench.plan()
    bench.fail()
    bench.add(range(9), 3)
    bench.run()
    assert bench.requests["1"].num_cached_tokens == 0


def test_an_aborted_request_keeps_its_blocks_until_the_open_plan_is_committed() -> None:
    bench = Bench()
    bench.add([1, 2, 3], 5)
    bench.plan()
    bench.core.abort("0", bench.now)
    bench.check()
    assert bench.core.pool.num_held > 0
    bench.commit()
    assert (bench.core.pool.num_held, bench.tokens["0"]) == (0, [])


def test_a_stop_string_found_late_takes_back_what_came_after_it() -> None:
    bench = Bench(max_inflight=2)
    bench.add([1, 2, 3], 10)
    bench.step()
    bench.plan()
    bench.core.finish("0", FinishReason.STOP, bench.now, num_tokens=1, stop_reason="END")
    bench.run()
    assert len(bench.tokens["0"]) == 1
    assert bench.requests["0"].num_generated_tokens == 1
    assert bench.core.pool.num_held == 0


def test_two_plans_may_be_open_and_the_second_computes_what_the_first_samples() -> None:
    bench = Bench(max_inflight=2)
    bench.add([1, 2, 3], 4)
    assert bench.plan() and bench.plan()
    assert bench.plan() is None
    assert bench.open[1].grants[0].start == 3
    bench.commit()
    bench.commit()
    bench.run()
    bench.check_tokens()


def test_a_raising_scheduler_leaves_the_step_to_the_built_in_order() -> None:
    def schedule(step: StepView) -> None:
        for request in [*step.running, *step.waiting]:
            step.schedule(request, 1)
        raise RuntimeError("planted")

    bench = Bench(schedule=schedule)
    bench.add(range(6), 3)
    bench.add(range(9), 3)
    bench.run()
    assert bench.plans[0].num_tokens == 15  # not the raising policy's two
    bench.check_tokens()


def test_a_scheduler_that_grants_nothing_does_not_stop_the_engine() -> None:
    bench = Bench(schedule=lambda step: None)
    bench.add(range(6), 3)
    bench.run()
    bench.check_tokens()


def test_a_scheduler_may_wait_but_not_for_long() -> None:
    asked: list[float] = []

    def schedule(step: StepView) -> None:
        asked.append(step.now)
        if len(asked) == 1:
            step.wait_until(step.now + 3600)
        else:
            for request in step.waiting:
                step.schedule(request)

    bench = Bench(schedule=schedule)
    bench.add([1], 1)
    assert bench.plan() is None
    assert bench.core.wake_at == pytest.approx(1.0)
    bench.run()
    assert bench.reasons["0"] is FinishReason.LENGTH


def test_a_scheduler_that_always_waits_delays_a_step_by_a_second_and_is_blamed() -> None:
    bench = Bench(schedule=lambda step: step.wait_until(step.now + 0.3))
    bench.add([1], 2)
    waits = []
    while bench.plan() is None:
        waits.append(bench.now)
        assert bench.core.wake_at is not None
        bench.now = bench.core.wake_at
    assert [*waits, bench.now] == pytest.approx([0.0, 0.3, 0.6, 0.9, 1.0])
    assert stats_of(bench.plugins, "schedule").failures == 1


def test_a_wait_that_ended_because_nothing_was_left_to_do_is_forgotten() -> None:
    bench = Bench(schedule=lambda step: step.wait_until(step.now + 0.3))
    bench.add([1], 2)
    assert bench.plan() is None
    bench.core.abort("0", bench.now)
    assert bench.plan() is None
    bench.now = 100.0
    bench.add([1], 2)
    assert bench.plan() is None
    assert bench.core.wake_at == pytest.approx(100.3)


def test_the_senior_request_is_served_in_the_end_whatever_the_policy() -> None:
    def newest_only(step: StepView) -> None:
        for request in reversed([*step.running, *step.waiting]):
            if request.request_id != "0" and step.schedule(request):
                return

    bench = Bench(schedule=newest_only, num_blocks=8, max_num_seqs=2)
    bench.add([1, 2], 2)
    for _ in range(STARVATION_STEPS + 20):
        if bench.core.num_running + bench.core.num_waiting < 3:
            bench.add([3], 5)
        bench.step()
    assert bench.requests["0"].num_generated_tokens > 0


class NewestFirst:
    uses_priority = False

    def key(self, request: RequestView, now: float) -> tuple[float, ...]:
        return (-int(request.engine_id),)


class NewestFirstPlugin:
    TOKENMILL_API = (1, 1)

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(kinds.SCHEDULING_POLICY, "newest-first", NewestFirst)


@pytest.mark.parametrize("num_host_blocks", [0, 64])
def test_preempted_requests_come_back_in_the_order_of_the_policy(num_host_blocks: int) -> None:
    orders: list[list[str]] = []

    def schedule(step: StepView) -> None:
        orders.append([r.engine_id for r in step.waiting if r.num_preemptions])
        for request in (*step.running, *step.waiting):
            step.schedule(request)

    bench = Bench(
        num_blocks=6,
        num_host_blocks=num_host_blocks,
        schedule=schedule,
        plugins=[NewestFirstPlugin()],
        scheduling_policy="newest-first",
        preemption_mode="swap" if num_host_blocks else "recompute",
    )
    for _ in range(3):
        bench.add([1, 2], 18)
    bench.run()
    bench.check_tokens()
    assert ["2", "1"] in orders and ["1", "2"] not in orders
    assert all(reason is FinishReason.LENGTH for reason in bench.reasons.values())
