"""How many tokens to draft for a request: as many as make the engine faster, down to none.

With acceptance probability a, the draft token at position j brings a token with probability a^j. It
costs the seconds that one token more adds to a step, in which the engine would make some tokens
elsewhere. So a draft of k tokens is worth a + a^2 + ... + a^k tokens, and costs rate * seconds(k);
the best k, at the rate of the best k, is the fixed point of Dinkelbach's method for fractions
(Dinkelbach 1967; for speculation: Leviathan et al. 2023, section 3.5; Liu et al. 2024, "Optimizing
speculative decoding for serving large language models using goodput"). What the first draft of a
step costs, all of its requests pay: a step has drafts if together they are worth that.

Both are measured: acceptance per request and over all, seconds over the engine's own steps. What is
not known yet counts as cheap, and is tried in small steps. No clock is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from ....plugin import DraftedStep, DraftOutcome, RequestView, SpeculationLimits
from .history import DraftHistory
from .patience import Patience
from .prices import NOTHING, DraftPrices
from .step_costs import StepCosts

REQUEST_MEMORY = 0.95
"""What an observation of a request is worth after the next one."""
ENGINE_MEMORY = 0.98
PRIOR_WEIGHT = 8.0
"""Observations that the engine-wide acceptance counts for in a request's estimate."""
FIRST_ACCEPTANCE = 0.6
FIRST_WEIGHT = 4.0
"""The engine-wide estimate begins as if so many had been observed."""
PRICED_STEPS = 8
"""Prices are told again after so many steps, and when the number of requests changes."""
FIRST_PROBE, LAST_PROBE = 16, 1024
"""Steps between two probes of a request whose drafts do not pay, doubled with every probe: what does
not repeat itself now may do so later."""
PROBE_SHARE, HOPELESS_PROBE_SHARE = 0.01, 0.001
"""Steps that verified probes may cost, as a part of all; the latter where not even drafts that are
always right would pay, as far as is known. Probes wait until then, and are made together."""
PROBE_CREDIT = 1.0
"""Steps that probes may take before that."""
LAST_MODEL_PROBE = 64
"""A draft model must compute all that it missed before it can be probed, and it does not get better
at a text as lookups do: after an interval of so many steps it is left alone."""
MODEL_PROBE_REQUESTS = 16
"""It is probed on every so many-th request that comes while it does not pay."""
NEVER = 2**62
MISSES_TO_BACK_OFF = 32
"""A request for which nothing was found so many times takes turns, as probes do: to ask takes time on
both threads, which shows in steps of milliseconds."""
TURN_STEPS, ANSWER_STEPS = 8, 3
"""Turns are in every so many-th step, the same for all, and not before an answer was verified."""
FOUND_MEMORY, FIRST_FOUND_MEMORY = 16, 64
"""How often drafts are found is a mean of so many; the latter over all requests, for new ones."""


class _Chosen(NamedTuple):
    """Lengths for these requests."""

    engine_ids: Sequence[str]
    lengths: Sequence[int]
    until_end: Sequence[int]
    """The same without those whose turn it was."""
    end: int
    """The step in which something becomes due."""


class AdaptiveDraftLength:
    """The lengths for all requests of one engine. They are thought over when something was learned;
    else a step costs a look-up."""

    def __init__(self) -> None:
        self._longest = 0
        self._is_model = False
        self._histories: dict[str, DraftHistory] = {}
        """By request id."""
        self._num_requests = 0
        self._step = 0
        self._probe_debt = -PROBE_CREDIT
        """In steps: what probes cost and is not yet made up for."""
        self._are_probes = True
        """Whether the last choice was that nobody should guess, but to find out."""
        self._num_asked = 0
        """Requests that were asked for in the step that is observed now."""
        self._chosen: _Chosen | None = None
        """The last choice, while nothing it depends on has changed."""
        self._costs = StepCosts()
        self._patience = Patience()
        self._accepted = FIRST_ACCEPTANCE * FIRST_WEIGHT
        self._tried = FIRST_WEIGHT
        self._num_drafting: float | None = None
        """Requests whose drafts share a step, on average."""
        self._found = 1.0
        """The part of asked-for drafts that is found, over all requests."""
        self._prices: DraftPrices | None = None
        """None while there is nothing to tell them by: then there are no drafts."""
        self._priced_for = 0
        """Requests of the step that the prices are for; 0: they must be told again."""
        self._num_priced = 0

    @property
    def acceptance(self) -> float:
        """Probability that a draft token is accepted if those before it are, over all requests."""
        return self._accepted / self._tried

    # Choosing

    def choose(self, requests: Sequence[RequestView], limits: SpeculationLimits) -> Sequence[int]:
        self._longest = limits.num_speculative_tokens
        self._is_model = limits.needs_lookahead
        engine_ids = [request.engine_id for request in requests]
        num_requests = len(engine_ids)
        self._step += 1
        if num_requests:
            self._price(num_requests)
        prices = self._prices
        if prices is None:
            return [0] * num_requests
        share = PROBE_SHARE if prices.could_be_worth_it else HOPELESS_PROBE_SHARE
        self._probe_debt = max(-PROBE_CREDIT, self._probe_debt - share)
        if not self._patience.is_left:
            return [0] * num_requests
        chosen = self._chosen
        if chosen is None or self._step >= chosen.end or chosen.engine_ids != engine_ids:
            chosen = self._chosen = self._choose_anew(engine_ids, prices)
            return chosen.lengths
        return chosen.until_end

    def _choose_anew(self, engine_ids: Sequence[str], prices: DraftPrices) -> _Chosen:
        histories = [self._history(engine_id) for engine_id in engine_ids]
        choices = [prices.choose(self._estimate(history)) for history in histories]
        if not prices.are_worth_it(choices, [history.found for history in histories]):
            choices = [NOTHING] * len(engine_ids)
        self._are_probes = all(choice is NOTHING for choice in choices)
        lengths, until_end, end = [], [], NEVER
        for history, choice in zip(histories, choices, strict=True):
            length = choice.length
            if length:
                history.probe_interval = 0
            if length and history.misses < MISSES_TO_BACK_OFF:
                history.is_probe = False
                until_end.append(length)
            else:
                length, due_at = self._take_turn(history, length)
                end = min(end, due_at)
                until_end.append(0)
            lengths.append(length)
        return _Chosen(engine_ids, lengths, until_end, end)

    def _take_turn(self, history: DraftHistory, length: int) -> tuple[int, int]:
        """What is asked for in this step of a request that is not asked in each, and the step of
        its next turn. Length 0: of one that is probed at most."""
        due_at = history.ask_at
        if not length:
            may_probe_at = self._step + ceil(self._probe_debt / PROBE_SHARE)
            due_at = max(due_at, history.probe_at, may_probe_at)
        if due_at > self._step:
            return 0, due_at
        history.is_probe = not length
        # The next step is planned before the answer is there, and drops it; if it asks again, the one
        # after it waits, and verifies the second answer. A draft model is always waited for.
        is_second = history.asks_again and history.ask_at == self._step
        history.asks_again = not is_second and not self._is_model
        next_turn = -(-(self._step + ANSWER_STEPS) // TURN_STEPS) * TURN_STEPS
        history.ask_at = self._step + 1 if history.asks_again else next_turn
        return length or 1, history.ask_at

    def _estimate(self, history: DraftHistory) -> float:
        """Probability that a draft token of this request is accepted."""
        accepted = history.accepted + PRIOR_WEIGHT * self.acceptance
        return accepted / (history.tried + PRIOR_WEIGHT)

    def _history(self, engine_id: str) -> DraftHistory:
        history = self._histories.get(engine_id)
        if history is None:
            self._num_requests += 1
            is_probed = not self._is_model or self._num_requests % MODEL_PROBE_REQUESTS == 1
            history = self._histories[engine_id] = DraftHistory(
                probe_at=0 if is_probed else NEVER, found=self._found
            )
        return history

    def _price(self, num_requests: int) -> None:
        """Tell the prices again, where they may be others."""
        self._num_priced += 1
        is_known = self._costs.know_base(num_requests)
        if is_known and num_requests == self._priced_for and self._num_priced % PRICED_STEPS:
            return
        self._prices, self._priced_for, self._chosen = None, 0, None
        if not is_known:
            return
        num_drafting = min(num_requests, self._num_drafting or num_requests)
        self._prices = DraftPrices(
            self._costs, num_requests, num_drafting, self.acceptance, self._longest
        )
        if self._prices.are_final:
            self._priced_for = num_requests

    # Learning

    def observe(self, step: DraftedStep) -> None:
        for outcome in step.outcomes:
            history = self._histories.get(outcome.engine_id)
            if outcome.max_draft_tokens and history is not None:
                self._observe_answer(history, outcome.num_proposed_tokens)
            if outcome.num_draft_tokens:
                self._observe_draft(history, outcome)
        self._observe_step(step)

    def forget(self, engine_id: str) -> None:
        self._histories.pop(engine_id, None)

    def _observe_draft(self, history: DraftHistory | None, outcome: DraftOutcome) -> None:
        """A draft was verified."""
        num_accepted = outcome.num_accepted_tokens
        tried = min(outcome.num_draft_tokens, num_accepted + 1)
        self._accepted = ENGINE_MEMORY * self._accepted + num_accepted
        self._tried = ENGINE_MEMORY * self._tried + tried
        if history is None:
            return
        if history.is_probe and self._prices is not None:
            self._probe_debt += self._prices.probe_steps
        history.accepted = REQUEST_MEMORY * history.accepted + num_accepted
        history.tried = REQUEST_MEMORY * history.tried + tried
        history.probe_interval = min(max(FIRST_PROBE, 2 * history.probe_interval), LAST_PROBE)
        is_last = self._is_model and history.probe_interval > LAST_MODEL_PROBE
        history.probe_at = NEVER if is_last else self._step + history.probe_interval
        self._chosen = None

    def _observe_answer(self, history: DraftHistory, num_tokens: int) -> None:
        """It was asked for drafts, and got so many."""
        self._num_asked += 1
        if self._is_model:
            return  # it may only have had no room to catch up
        is_found = num_tokens > 0
        self._found += (is_found - self._found) / FIRST_FOUND_MEMORY
        history.found += (is_found - history.found) / FOUND_MEMORY
        took_turns = history.misses >= MISSES_TO_BACK_OFF
        history.misses = 0 if is_found else history.misses + 1
        if took_turns != (history.misses >= MISSES_TO_BACK_OFF):
            self._chosen = None

    def _observe_step(self, step: DraftedStep) -> None:
        """What the step took, once its outcomes are known."""
        num_asked, self._num_asked = self._num_asked, 0
        num_requests, num_tokens = step.num_requests, step.num_tokens
        num_drafting = sum(outcome.num_draft_tokens > 0 for outcome in step.outcomes)
        if num_drafting:
            before = self._num_drafting or num_drafting
            self._num_drafting = before + (num_drafting - before) / 8
        if step.is_decode:
            seconds_of_step = step.seconds - step.proposal_seconds
            is_plain = not (num_asked or step.proposal_seconds or step.was_held_back)
            excess = self._costs.add_step(
                num_requests, num_tokens, seconds_of_step, is_plain=is_plain
            )
            if self._are_probes:
                self._probe_debt += excess
        self._patience.add_step(1.0 if self._is_model else step.seconds)
        if num_asked:
            self._observe_call(step, num_asked)
            if self._are_probes:
                self._probe_debt += self._costs.in_steps(num_requests, step.proposal_seconds)

    def _observe_call(self, step: DraftedStep, num_asked: int) -> None:
        """Somebody was asked for drafts; it counts also when nothing came of it."""
        num_passes = max((outcome.num_proposed_tokens for outcome in step.outcomes), default=0)
        self._costs.add_proposing(num_asked, num_passes, step.proposal_seconds)
        if self._is_model and not num_passes and not step.draft_token_budget:
            return  # it had no room to catch up
        # A draft model is asked at the price of planning ahead, whatever it answers.
        cost = 1.0 if self._is_model else step.proposal_seconds
        self._patience.add_call(cost, found=num_passes > 0)
