"""The step log divides the latency of each request into parts that are right to the second."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from tests.core.engines import Bench
from tokenmill.core.contract.explanation import Explanation, Limit
from tokenmill.core.contract.policy import StepView
from tokenmill.core.contract.trace import join_pieces
from tokenmill.core.engine.request import Request
from tokenmill.core.engine.step_log.log import PIECE
from tokenmill.core.engine.step_log.steps import LoggedStep, Ring
from tokenmill.core.requests.request_options import RequestOptions
from tokenmill.core.requests.sampling_params import SamplingParams


class Clock(Bench):
    """A small engine with a log, whose steps take as long as their caller says."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"num_blocks": 64} | settings)

    def ask(self, name: str, num_tokens: int, **fields: Any) -> None:
        """Queue a request whose prompt no other one has."""
        first = 50 * len(self.requests)
        request = Request(
            request_id=name,
            prompt_token_ids=tuple(range(first, first + num_tokens)),
            sampling_params=SamplingParams(),
            max_tokens=fields.get("max_tokens", 1),
            arrival_time=self.now,
            seed=1,
            options=RequestOptions(priority=fields.get("priority", 0)),
            grammar_seconds=fields.get("grammar_seconds", 0.0),
        )
        self.queue([request])

    def take(self, seconds: float) -> None:
        """Plan a step now, and commit it `seconds` later."""
        self.plan()
        self.now += seconds
        if self.open:
            self.commit()

    def why(self, name: str) -> Explanation:
        assert self.core.log is not None
        [found] = self.core.log.explain(name, self.now)
        return found


def test_a_request_alone_has_its_prompt_and_its_tokens_and_nothing_else() -> None:
    bench = Clock()
    bench.ask("a", 20, max_tokens=4)
    bench.take(2.0)
    for _ in range(3):
        bench.take(0.5)
    found = bench.why("a")
    assert (found.seconds, found.first_token_seconds) == (3.5, 2.0)
    assert (found.prompt_alone, found.prompt_others, found.decode_alone) == (2.0, 0.0, 1.5)
    assert found.causes[0] == ("its own prompt", 2.0)
    assert (found.finish_reason, found.num_generated_tokens) == ("length", 4)
    assert found.num_prompt_steps == 1 and not any(found.waiting.values())


def test_tokens_of_others_in_the_steps_of_a_prompt_take_their_share() -> None:
    bench = Clock()
    bench.ask("a", 10)
    bench.ask("b", 30)
    bench.take(4.0)
    found = bench.why("a")
    assert (found.prompt_alone, found.prompt_others) == (1.0, 3.0)
    assert found.num_other_tokens == 30
    assert found.causes[0][0] == "tokens of other requests in the steps of its prompt"


def test_a_request_that_arrives_during_a_step_waits_for_its_end() -> None:
    bench = Clock()
    bench.ask("a", 10, max_tokens=9)
    bench.plan()
    bench.now = 1.0
    bench.ask("b", 10)
    bench.now = 3.0
    bench.commit()
    bench.take(1.0)
    assert bench.why("b").waiting == {Limit.OPEN_STEP: 2.0}


def test_a_full_pool_names_the_holder_and_those_behind_name_the_one_before_them() -> None:
    bench = Clock(num_blocks=8)
    bench.ask("holder", 20, max_tokens=4)
    bench.take(1.0)
    bench.ask("first", 16)
    bench.ask("second", 1)
    for _ in range(3):
        bench.take(1.0)
    first, second = bench.why("first"), bench.why("second")
    assert first.waiting == {Limit.BLOCKS: 3.0} == second.waiting
    assert first.held_by == ("holder",) == second.held_by
    assert (first.behind, second.behind) == (None, "first")
    assert first.causes[0] == ("no free blocks", 3.0)


def test_a_full_step_stops_a_prompt_for_lack_of_budget() -> None:
    bench = Clock(max_num_batched_tokens=8)
    bench.ask("long", 16)
    bench.ask("short", 4)
    for _ in range(3):
        bench.take(1.0)
    assert bench.why("short").waiting == {Limit.BUDGET: 2.0}


def test_all_seats_taken_is_named_for_the_whole_queue() -> None:
    bench = Clock(max_num_seqs=1)
    bench.ask("a", 4, max_tokens=3)
    bench.take(1.0)
    bench.ask("b", 4)
    bench.ask("c", 4)
    for _ in range(4):
        bench.take(1.0)
    assert bench.why("b").waiting == {Limit.SEQUENCES: 2.0}
    assert bench.why("c").waiting == {Limit.SEQUENCES: 3.0}


def test_a_preemption_lasts_until_the_tokens_are_computed_again() -> None:
    bench = Clock(num_blocks=8, scheduling_policy="priority", max_num_batched_tokens=16)
    bench.ask("victim", 14, max_tokens=3, priority=5)
    bench.take(1.0)
    bench.ask("urgent", 28)
    for _ in range(2):  # the prompt of the urgent one
        bench.take(1.0)
    bench.take(2.0)  # the victim's tokens again
    bench.take(1.0)
    found = bench.why("victim")
    [preemption] = found.preemptions
    assert (preemption.by, preemption.mode, preemption.num_tokens) == ("urgent", "recompute", 14)
    assert (preemption.priority, preemption.by_priority) == (5, 0)
    assert found.preempted == 4.0 and found.decode_alone == 1.0
    assert found.causes[0] == ("preempted", 4.0)


def test_a_preemption_by_swapping_lasts_until_the_request_comes_back() -> None:
    bench = Clock(
        num_blocks=8,
        num_host_blocks=8,
        preemption_mode="swap",
        scheduling_policy="priority",
        max_num_batched_tokens=16,
    )
    bench.ask("victim", 14, max_tokens=3, priority=5)
    bench.take(1.0)
    bench.ask("urgent", 28)
    for _ in range(2):
        bench.take(1.0)
    for _ in range(2):
        bench.take(0.5)
    found = bench.why("victim")
    assert [one.mode for one in found.preemptions] == ["swap"]
    assert found.preempted == 2.0 and found.decode_alone == 1.0
    assert not any(found.waiting.values())


def test_a_prompt_between_two_tokens_is_the_cause_of_the_gap() -> None:
    bench = Clock(max_num_batched_tokens=16)
    bench.ask("a", 4, max_tokens=9)
    bench.take(1.0)
    bench.take(1.0)
    bench.ask("batch", 15)
    bench.take(8.0)
    found = bench.why("a")
    assert found.longest_gap is not None
    assert (found.longest_gap.seconds, found.longest_gap.cause) == (8.0, "batch")
    assert found.decode_others == 8.0 * 15 / 16
    assert found.causes[0][0] == "prompts of other requests between its tokens"


def test_a_running_request_that_the_scheduler_leaves_out_is_not_offered() -> None:
    def only_prompts(step: StepView) -> None:
        for request in [*step.running, *step.waiting]:
            if not request.is_decoding or not step.waiting:
                step.schedule(request)

    bench = Clock(schedule=only_prompts)
    bench.ask("a", 4, max_tokens=2)
    bench.take(1.0)
    bench.ask("b", 4)
    bench.take(5.0)
    bench.take(1.0)
    assert bench.why("a").waiting == {Limit.NOT_OFFERED: 5.0}


def test_a_limit_of_a_wrapper_and_a_pause_of_the_scheduler_are_told_apart() -> None:
    def hesitant(step: StepView) -> None:
        if step.now < 1.0:
            return step.wait_until(1.0)
        for request in step.waiting:
            step.limit(request, 0 if request.request_id == "b" and step.now < 3.0 else 99)
        for request in [*step.running, *step.waiting]:
            step.schedule(request)

    bench = Clock(schedule=hesitant)
    bench.ask("a", 4, max_tokens=9)
    bench.ask("b", 4)
    for _ in range(4):
        bench.take(1.0)
    assert bench.why("a").waiting == {Limit.WAIT_UNTIL: 1.0}
    assert bench.why("b").waiting == {Limit.WAIT_UNTIL: 1.0, Limit.PLUGIN: 2.0}


def test_a_request_refused_while_its_open_plan_runs_waits_from_the_plans_end() -> None:
    def pausing(step: StepView) -> None:
        for request in [*step.running, *step.waiting]:
            step.limit(request, 0 if (request.request_id, step.now) == ("a", 2.0) else 99)
            step.schedule(request)

    bench = Clock(schedule=pausing, max_inflight=2)
    bench.ask("a", 4, max_tokens=9)
    bench.ask("b", 4, max_tokens=9)
    bench.take(1.0)
    bench.plan()
    bench.now = 2.0
    bench.plan()  # while the plan before it computes both
    bench.now = 4.0
    bench.commit()
    bench.now = 6.0
    bench.commit()
    bench.take(1.0)
    assert bench.why("a").waiting == {Limit.PLUGIN: 2.0}
    assert bench.why("b").waiting == {}


def test_the_time_in_which_its_grammar_was_compiled_counts_as_waiting() -> None:
    bench = Clock()
    bench.now = 5.0
    bench.ask("a", 4, grammar_seconds=3.0)
    bench.take(1.0)
    found = bench.why("a")
    assert found.seconds == 4.0 and found.waiting[Limit.GRAMMAR] == 3.0


def test_a_step_says_what_it_computed_took_and_freed() -> None:
    bench = Clock(block_size=4)
    bench.ask("a", 9, max_tokens=2)
    bench.take(1.0)
    bench.take(1.0)
    assert bench.core.log is not None
    second, first = bench.core.log.ring.steps
    assert (first.engine_ids, first.prompts, first.num_tokens) == (("a",), (("a", 9),), 9)
    assert first.num_cached == (("a", 0),)
    assert (first.num_blocks_taken, first.num_blocks_freed) == (3, 0)
    assert (second.prompts, second.num_blocks_freed) == ((), 3)
    assert (second.planned_at, second.committed_at) == (1.0, 2.0)


def test_a_long_trace_comes_in_pieces_while_the_engine_goes_on() -> None:
    bench = Clock()
    for number in range(PIECE + 10):
        bench.ask(f"{number}", 4, max_tokens=1)
        bench.take(1.0)
    bench.ask("live", 4, max_tokens=9)
    bench.take(1.0)
    assert bench.core.log is not None
    pieces = bench.core.log.trace(-1e9, bench.now)
    found = [next(pieces)]
    bench.take(1.0)
    found += pieces
    trace = join_pieces(found)
    assert all(len(one.steps) <= PIECE and len(one.requests) <= PIECE for one in found)
    assert [one.step_id for one in trace.steps] == [*range(1, PIECE + 12)]
    assert [one.engine_id for one in trace.requests] == [*map(str, range(PIECE + 10)), "live"]
    assert trace.requests[-1].num_generated_tokens == 1


def test_the_ring_keeps_its_size_and_forgets_the_oldest_first() -> None:
    ring = Ring(10_000)
    for number in range(1000):
        ring.add_step(LoggedStep(step_id=number, planned_at=0.0, engine_ids=("a",), num_tokens=1))
    steps = [step.step_id for step in ring.steps]
    assert steps == list(range(999, 999 - len(steps), -1)) and 10 < len(steps) < 30


def test_the_log_stays_within_its_size_however_many_requests_come() -> None:
    size, used = 50_000, []
    bench = Clock(step_log_size=size, max_num_seqs=64, num_blocks=999)
    tracemalloc.start()
    for turn in range(20):
        for number in range(8):
            bench.ask(f"request-{turn}-{number}", 5, max_tokens=number + 1)
        while bench.core.has_work:
            bench.take(1.0)
        if turn in (9, 19):
            found = tracemalloc.take_snapshot()
            mine = found.filter_traces([tracemalloc.Filter(True, "*step_log/*")])
            used.append(sum(one.size for one in mine.statistics("filename")))
    tracemalloc.stop()
    assert 0.2 * size < used[1] < size
    # Memory that was allocated before tracemalloc started is not counted, until it is used up.
    assert used[1] < used[0] + 0.2 * size


def test_an_unknown_request_has_no_explanation() -> None:
    bench = Clock()
    assert bench.core.log is not None and bench.core.log.explain("nobody", 0.0) == ()


def test_without_a_size_there_is_no_log() -> None:
    bench = Clock(step_log_size=0)
    bench.ask("a", 4)
    bench.take(1.0)
    assert bench.core.log is None
    with pytest.raises(AssertionError):
        bench.why("a")
