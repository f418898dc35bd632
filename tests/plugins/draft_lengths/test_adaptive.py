"""Adaptive draft lengths on simulated devices: near the best where drafts pay, else off."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import pytest

from tokenmill.core.contract.providers.draft_length import DraftedStep, DraftOutcome
from tokenmill.core.contract.providers.speculation import SpeculationLimits
from tokenmill.core.engine.request import Request
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.plugins.draft_lengths.adaptive import AdaptiveDraftLength
from tokenmill.plugins.draft_lengths.adaptive.phases import TRIAL_PAUSE, TRIAL_STEPS

Cost = Callable[[int], float]
LONGEST = 8
JUMPS = (1.0, 2.0, 0.7, 1.5)
"""A machine that is at times three times slower than a step before."""
REQUEST_NUMBERS = itertools.count()


def memory_bound(num_tokens: int) -> float:
    return 0.010 + 0.00002 * num_tokens


def mixed(num_tokens: int) -> float:
    return 0.004 + 0.0008 * num_tokens


def compute_bound(num_tokens: int) -> float:
    return 0.001 + 0.002 * num_tokens


class _Planned(NamedTuple):
    drafts: Sequence[int]
    asked: Sequence[int]
    was_held_back: bool


@dataclass
class Device:
    """Steps of a fixed batch whose drafts are right with a given probability."""

    cost: Cost
    acceptances: Sequence[float]
    lengths: AdaptiveDraftLength = field(default_factory=AdaptiveDraftLength)
    needs_lookahead: bool = False
    """Whether drafts come from a draft model."""
    find_rate: float = 1.0
    """How often a proposal is found when it is asked for."""
    num_finders: int = 10**6
    """Only for so many of the requests anything is found."""
    pass_seconds: float = 0.0
    catch_up_seconds: float = 0.0
    """For each token that the speculator did not see yet."""
    token_budget: int = 100
    ask_seconds: float = 0.0
    """For each call, whatever it finds."""
    told: float = 1.0
    """The part of what proposing takes that the executor tells of."""
    fixed_seconds: float = 0.0
    """What a step with drafts costs more, whatever their number."""
    late_seconds: float = 0.0
    """What a step costs more that could not be planned while the one before it ran."""
    paces: Sequence[float] = (1.0,)
    """How slow the machine is, for a hundred steps each; what it costs here is told at pace 1."""
    spike: float = 1.0
    spike_rate: float = 0.0
    """So many steps take so many times as long."""
    rng: random.Random = field(default_factory=lambda: random.Random(5))

    def __post_init__(self) -> None:
        self.requests = [_request() for _ in self.acceptances]
        self.found = [0] * len(self.requests)
        """By the last step."""
        self.was_awaited = False
        self.planned: _Planned | None = None
        """A step that was planned behind the last one."""
        self.unseen = [0] * len(self.requests)
        self.seconds, self.num_tokens, self.num_draft_tokens, self.num_steps = 0.0, 0, 0, 0
        self.asked: list[list[int]] = []

    def run(self, num_steps: int) -> float:
        """Tokens per second over these steps."""
        seconds, num_tokens = self.seconds, self.num_tokens
        for _ in range(num_steps):
            self.step()
        return (self.num_tokens - num_tokens) / (self.seconds - seconds)

    def step(self, extra_seconds: float = 0.0) -> None:
        """As the engine does: the next step is planned before this one is run, without its drafts,
        unless there may be some that it is to have."""
        lengths, planned = self.lengths, self.planned or self._plan(self.found)
        drafts, asked = planned.drafts, planned.asked
        must_be_awaited = any(drafts) or any(
            k and (n or self.needs_lookahead) for k, n in zip(asked, self.found, strict=True)
        )
        self.planned = None if must_be_awaited else self._plan([0] * len(drafts))
        found = [
            k if i < self.num_finders and self.rng.random() < self.find_rate else 0
            for i, k in enumerate(asked)
        ]
        seconds = self.cost(len(drafts) + sum(drafts)) * self.rng.uniform(1.0, 1.05)
        spike = 1 + (self.spike - 1) * (self.rng.random() < self.spike_rate)
        seconds += self.fixed_seconds * any(drafts) + self.late_seconds * planned.was_held_back
        outputs = [self._verify(i, drafts[i]) for i in range(len(drafts))]
        proposing = self.pass_seconds * max(found, default=0) + self._catch_up(outputs, asked)
        proposing += self.ask_seconds * any(asked)
        self.num_steps += 1
        pace = self.paces[self.num_steps // 100 % len(self.paces)]
        step = DraftedStep(
            num_requests=len(drafts),
            num_tokens=len(drafts) + sum(drafts),
            is_decode=True,
            seconds=spike * pace * (seconds + proposing) + extra_seconds,
            proposal_seconds=spike * pace * self.told * proposing,
            was_held_back=planned.was_held_back,
            draft_token_budget=self.token_budget,
            outcomes=[
                DraftOutcome(
                    engine_id=request.engine_id,
                    num_draft_tokens=num_drafts,
                    num_accepted_tokens=num_outputs - 1,
                    max_draft_tokens=length,
                    num_proposed_tokens=count,
                )
                for request, num_drafts, num_outputs, length, count in zip(
                    self.requests, drafts, outputs, asked, found, strict=True
                )
                if num_drafts or length
            ],
        )
        lengths.observe(step)
        self.seconds += seconds + proposing
        self.num_tokens += sum(outputs)
        self.num_draft_tokens += sum(drafts)
        self.found = found
        self.was_awaited = must_be_awaited
        self.asked.append(asked)

    def _plan(self, drafts: Sequence[int]) -> _Planned:
        limits = SpeculationLimits(
            num_speculative_tokens=LONGEST, needs_lookahead=self.needs_lookahead
        )
        return _Planned(drafts, self.lengths.choose(self.requests, limits), self.was_awaited)

    def _catch_up(self, outputs: Sequence[int], asked: Sequence[int]) -> float:
        """Seconds for what those that are asked for missed."""
        self.unseen = [a + b for a, b in zip(self.unseen, outputs, strict=True)]
        missed = sum(n for n, k in zip(self.unseen, asked, strict=True) if k)
        self.unseen = [0 if k else n for n, k in zip(self.unseen, asked, strict=True)]
        return missed * self.catch_up_seconds

    def _verify(self, row: int, num_draft_tokens: int) -> int:
        accepted = 0
        while accepted < num_draft_tokens and self.rng.random() < self.acceptances[row]:
            accepted += 1
        return accepted + 1

    @property
    def without(self) -> float:
        """Tokens per second without drafts."""
        return len(self.requests) / (self.cost(len(self.requests)) * 1.025)

    def best(self) -> float:
        """Tokens per second at the best length for all, when all are equally acceptable."""
        num, acceptance = len(self.requests), self.acceptances[0]
        gains = accumulate((acceptance**k for k in range(1, LONGEST + 1)), initial=0.0)
        return max(
            num * (1 + gain) / (self.cost(num * (1 + k)) + k * self.pass_seconds) / 1.025
            for k, gain in enumerate(gains)
        )


def _request() -> Request:
    number = str(next(REQUEST_NUMBERS))
    return Request(
        engine_id=number,
        request_id=number,
        prompt_token_ids=(1,),
        sampling_params=SamplingParams(),
        max_tokens=10**6,
        arrival_time=0.0,
        seed=0,
    )


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("num_requests", [1, 8, 32])
@pytest.mark.parametrize("cost", [memory_bound, mixed, compute_bound])
def test_it_is_near_the_best_length_and_hardly_ever_slower_than_no_drafts(
    cost: Cost, num_requests: int, acceptance: float
) -> None:
    device = Device(cost, [acceptance] * num_requests)
    device.run(300)
    rate = device.run(1000)
    assert rate > 0.97 * device.without
    assert rate > 0.85 * device.best()


def test_the_start_costs_little_where_drafts_do_not_pay() -> None:
    device = Device(compute_bound, [0.3] * 32)
    assert device.run(200) > 0.95 * device.without


def test_where_drafts_pay_it_takes_a_few_steps_to_use_them() -> None:
    device = Device(memory_bound, [0.9] * 4)
    device.run(25)
    assert max(device.asked[-1]) == LONGEST


def test_each_request_gets_its_own_length() -> None:
    device = Device(mixed, [0.95, 0.05, 0.95, 0.05])
    device.run(400)
    means = [sum(row) / 100 for row in zip(*device.asked[-100:], strict=True)]
    assert min(means[0], means[2]) > 2 > 0.5 > max(means[1], means[3])


def test_a_larger_batch_gets_shorter_drafts_down_to_none() -> None:
    lengths = AdaptiveDraftLength()
    means = []
    for num_requests in (1, 4, 64):
        device = Device(mixed, [0.7] * num_requests, lengths)
        device.run(300)
        means.append(sum(map(sum, device.asked[-100:])) / 100 / num_requests)
    assert means[0] > means[1] > means[2] and means[2] < 0.05


def test_a_costly_draft_model_is_given_up_and_a_cheap_one_is_not() -> None:
    costly = Device(memory_bound, [0.6], pass_seconds=0.009)
    cheap = Device(memory_bound, [0.6], pass_seconds=0.001)
    for device in (costly, cheap):
        device.run(300)
    assert costly.run(500) > 0.97 * costly.without
    assert cheap.run(1500) > 0.9 * cheap.best() > 1.3 * cheap.without


def test_calls_that_find_nothing_count_too() -> None:
    device = Device(memory_bound, [0.9], find_rate=0.05, ask_seconds=0.005)
    device.run(500)
    assert device.run(1000) > 0.97 * device.without


@pytest.mark.parametrize("find_rate", [0.0, 0.01, 0.3])
def test_slow_calls_that_hardly_ever_find_anything_cost_little(find_rate: float) -> None:
    device = Device(memory_bound, [0.9], find_rate=find_rate, ask_seconds=0.005)
    device.run(1000)
    assert device.run(4000) > 0.97 * device.without


def test_a_draft_model_that_never_answers_is_hardly_asked_until_it_does() -> None:
    device = Device(memory_bound, [0.9], AdaptiveDraftLength(), needs_lookahead=True, find_rate=0.0)
    device.run(2000)
    assert 10 < sum(map(any, device.asked[-1000:])) < 100
    device.find_rate = 1.0
    device.run(200)
    assert max(device.asked[-1]) == LONGEST


def test_a_draft_model_without_room_to_catch_up_is_waited_for() -> None:
    device = Device(
        memory_bound,
        [0.9],
        AdaptiveDraftLength(),
        needs_lookahead=True,
        find_rate=0.0,
        token_budget=0,
    )
    device.run(1000)
    assert sum(map(any, device.asked)) > 900


def test_a_draft_model_that_does_not_pay_is_not_probed_at_the_price_of_catching_up() -> None:
    lengths = AdaptiveDraftLength()
    first = Device(
        mixed, [0.2], lengths, needs_lookahead=True, pass_seconds=0.002, catch_up_seconds=0.001
    )
    first.run(500)
    seconds = num_tokens = 0.0
    for _ in range(40):
        device = Device(
            mixed, [0.2], lengths, needs_lookahead=True, pass_seconds=0.002, catch_up_seconds=0.001
        )
        device.unseen = [400]  # its prompt
        device.run(50)
        seconds, num_tokens = seconds + device.seconds, num_tokens + device.num_tokens
    assert num_tokens / seconds > 0.95 * first.without


def test_drafts_that_do_not_bring_in_a_long_prompt_s_cost_are_given_up() -> None:
    lengths = AdaptiveDraftLength()
    rates = []
    for _ in range(60):
        device = Device(
            mixed, [0.8], lengths, needs_lookahead=True, pass_seconds=0.0005, catch_up_seconds=0.001
        )
        device.unseen = [1000]
        rates.append(device.run(20))
    assert sum(rates[-20:]) / 20 > 0.9 * device.without


def test_what_a_step_with_drafts_costs_at_any_length_is_seen() -> None:
    device = Device(memory_bound, [0.4], fixed_seconds=0.020)
    device.run(300)
    assert device.run(500) > 0.97 * device.without


def test_what_drafts_of_a_step_cost_whatever_their_number_all_bring_in_together() -> None:
    alone = Device(memory_bound, [0.6] + [0.1] * 7, fixed_seconds=0.003, ask_seconds=0.001)
    together = Device(memory_bound, [0.6] * 8, fixed_seconds=0.003, ask_seconds=0.001)
    for device in (alone, together):
        device.run(400)
    assert alone.run(1000) > 0.97 * alone.without
    assert together.run(1000) > 1.3 * together.without


@pytest.mark.parametrize("acceptance", [0.3, 0.9])
@pytest.mark.parametrize("cost", [mixed, compute_bound])
@pytest.mark.parametrize(("paces", "least"), [((1.0, 1.35, 0.9, 1.2), 0.97), (JUMPS, 0.92)])
def test_a_machine_that_becomes_slower_and_faster_does_not_mislead_it(
    paces: Sequence[float], least: float, cost: Cost, acceptance: float
) -> None:
    device = Device(cost, [acceptance] * 8, paces=paces)
    device.run(400)
    rate = device.run(2000)
    assert rate > least * device.without
    assert rate > 0.8 * device.best()


def test_drafts_dropped_because_the_next_step_was_planned_do_not_keep_a_request_unverified() -> (
    None
):
    trying = Device(compute_bound, [0.1] * 8)
    trying.run(400)
    before = trying.num_draft_tokens
    trying.run(2000)
    assert trying.num_draft_tokens > before + 8
    waiting = Device(memory_bound, [0.9] * 2, find_rate=0.0)
    waiting.run(200)
    waiting.find_rate = 1.0
    waiting.run(TRIAL_PAUSE + TRIAL_STEPS)
    assert waiting.num_draft_tokens


@pytest.mark.parametrize("find_rate", [0.02, 0.1])
@pytest.mark.parametrize("num_requests", [1, 8])
def test_a_text_that_begins_to_repeat_itself_is_noticed_although_searching_was_in_vain_for_long(
    num_requests: int, find_rate: float
) -> None:
    device = Device(
        memory_bound,
        [0.8] * num_requests,
        find_rate=find_rate,
        ask_seconds=0.0003,
        late_seconds=0.0005,
    )
    device.run(3000)
    device.find_rate = 1.0
    device.run(900)
    assert device.run(200) > 1.3 * device.without


def test_steps_held_back_for_drafts_that_do_not_come_are_charged_to_drafts() -> None:
    """What the executor tells of is a part of it only."""
    device = Device(
        mixed, [0.8] * 8, find_rate=0.1, late_seconds=0.002, ask_seconds=0.001, told=0.1
    )
    device.run(400)
    assert device.run(2000) > 0.97 * device.without


def test_drafts_found_now_and_then_pay_on_a_machine_that_becomes_slower_and_faster() -> None:
    device = Device(
        mixed, [0.8] * 4, find_rate=0.3, late_seconds=0.0003, paces=(1.0, 1.35, 0.9, 1.2)
    )
    device.run(400)
    assert device.run(3000) > 1.03 * device.without


def test_trials_cost_little_and_find_what_changed() -> None:
    device = Device(mixed, [0.0])
    device.run(1000)
    assert device.run(2000) > 0.985 * device.without
    device.acceptances = [0.95]
    device.run(400)
    assert sum(device.asked[-1]) > 2


def test_where_nothing_is_found_few_steps_ask_until_something_is() -> None:
    device = Device(memory_bound, [0.9] * 2)
    device.run(50)
    device.find_rate = 0.0
    device.run(1000)
    assert sum(map(any, device.asked[-800:])) < 80
    device.find_rate = 1.0
    device.run(2 * TRIAL_PAUSE)
    assert any(map(all, device.asked[-10:]))


@pytest.mark.parametrize("acceptance", [0.6, 0.9])
@pytest.mark.parametrize("num_requests", [8, 32])
def test_one_request_that_finds_drafts_among_many_that_do_not_slows_nobody(
    num_requests: int, acceptance: float
) -> None:
    device = Device(memory_bound, [acceptance] * num_requests, num_finders=1, fixed_seconds=0.003)
    device.run(400)
    assert device.run(2000) > 0.97 * device.without


def test_requests_that_run_by_turns_are_all_asked() -> None:
    lengths = AdaptiveDraftLength()
    devices = [Device(memory_bound, [0.9] * 2, lengths, find_rate=0.0) for _ in range(2)]
    for _ in range(400):
        for device in devices:
            device.step()
    assert all(sum(map(any, device.asked[-200:])) > 2 for device in devices)


def test_a_new_request_begins_with_what_others_had() -> None:
    lengths = AdaptiveDraftLength()
    Device(mixed, [0.95], lengths).run(300)
    fresh = Device(mixed, [0.95], lengths)
    fresh.step()
    assert fresh.asked[0][0] >= 3


def test_a_stopped_process_does_not_spoil_what_was_learned() -> None:
    device = Device(memory_bound, [0.8])
    device.run(100)
    device.step(extra_seconds=100.0)
    device.run(20)
    assert device.run(300) > 0.9 * device.best()


def test_a_slow_first_step_and_a_clock_that_jumps_back_do_no_harm() -> None:
    device = Device(memory_bound, [0.8])
    device.step(extra_seconds=5.0)
    device.step(extra_seconds=-50.0)
    device.run(150)
    assert device.run(300) > 0.9 * device.best()
