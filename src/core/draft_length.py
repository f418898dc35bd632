"""How many tokens to draft for a request: as many as make the engine faster, down to none.

With acceptance probability a, the draft token at position j brings a token with probability a^j. It
costs the seconds that one token more adds to a step, in which the engine would make some tokens
elsewhere. So a draft of k tokens is worth a + a^2 + ... + a^k tokens, and costs rate * seconds(k);
the best k, at the rate of the best k, is the fixed point of Dinkelbach's method for fractions
(Dinkelbach 1967; for speculation: Leviathan et al. 2023, section 3.5; Liu et al. 2024, "Optimizing
speculative decoding for serving large language models using goodput").

Both are measured: acceptance per request and over all, seconds over the engine's own steps. What is
not known yet counts as cheap, and is tried in small steps. No clock is read here.
"""

from __future__ import annotations

from collections.abc import Sequence

from .draft_history import DraftHistory
from .draft_patience import Patience
from .plan import StepPlan, StepResult
from .request import Request
from .speculation import SpeculationLimits
from .step_costs import StepCosts

LEVELS = 32
"""Acceptance probabilities are told apart in so many steps."""
REQUEST_MEMORY = 0.95
"""What an observation of a request is worth after the next one."""
ENGINE_MEMORY = 0.98
PRIOR_WEIGHT = 8.0
"""Observations that the engine-wide acceptance counts for in a request's estimate."""
FIRST_ACCEPTANCE = 0.6
FIRST_WEIGHT = 4.0
"""The engine-wide estimate begins as if so many had been observed."""
MARGIN = 1.2
"""A token must be worth so many times its price: estimates err, and off is never slower than off."""
PRICED_STEPS = 8
"""Prices are told again after so many steps, and when the number of requests changes."""
FIRST_PROBE, LAST_PROBE = 16, 1024
"""Steps between two probes of a request whose drafts do not pay, doubled with every probe."""
LAST_MODEL_PROBE = 64
"""A draft model must compute all that it missed before it can be probed, and it does not get better
at a text as lookups do: after an interval of so many steps it is left alone."""
MODEL_PROBE_REQUESTS = 16
"""It is probed on every so many-th request that comes while it does not pay."""
NEVER = 2**62


class DraftLengths:
    """The lengths for all requests of one engine. A request costs a look-up per step."""

    def __init__(self, limits: SpeculationLimits) -> None:
        self._longest = limits.num_speculative_tokens
        self._is_adaptive = limits.is_adaptive
        self._is_model = limits.needs_lookahead
        self._num_requests = 0
        self._costs = StepCosts()
        self._patience = Patience()
        self._accepted = FIRST_ACCEPTANCE * FIRST_WEIGHT
        self._tried = FIRST_WEIGHT
        self._num_drafting: float | None = None
        """Requests whose drafts share a step, on average."""
        self._prices: Sequence[float] = (0.0,)
        """In tokens, what a draft of 0, 1, 2, ... tokens costs; where it ends, none is made."""
        self._priced_for = 0
        """Requests of the step that the prices are for; 0: they must be told again."""
        self._num_priced = 0
        self._best: dict[int, int] = {}
        """Lengths at these prices, by level of acceptance, as far as they were asked for."""
        self._is_worthwhile = False
        """Whether drafts that are always right would be."""

    @property
    def acceptance(self) -> float:
        """Probability that a draft token is accepted if those before it are, over all requests."""
        return self._accepted / self._tried

    # Choosing

    def begin_step(self, num_requests: int) -> bool:
        """A step is planned in which so many requests sample. Answers whether `choose` could be
        more than 0 for any of them."""
        if not self._is_adaptive:
            return True
        if num_requests:
            self._price(num_requests)
        return self._is_worthwhile and self._patience.is_left

    def choose(self, request: Request) -> int:
        """Most tokens to propose for this request after the step that is planned."""
        if not self._is_adaptive:
            return self._longest
        history = request.draft_history
        if history is None:
            history = request.draft_history = self._begin_history()
        accepted = history.accepted + PRIOR_WEIGHT * self.acceptance
        length = self._best_length(accepted / (history.tried + PRIOR_WEIGHT))
        if length:
            history.probe_interval = 0
            return length
        return _probe(history)

    def _begin_history(self) -> DraftHistory:
        self._num_requests += 1
        is_probed = not self._is_model or self._num_requests % MODEL_PROBE_REQUESTS == 1
        return DraftHistory(steps_to_probe=0 if is_probed else NEVER)

    def _best_length(self, acceptance: float) -> int:
        level = round(acceptance * LEVELS)
        length = self._best.get(level)
        if length is None:
            gains = draft_gains(level / LEVELS, len(self._prices) - 1)
            worth = [gain - price for gain, price in zip(gains, self._prices, strict=True)]
            length = self._best[level] = worth.index(max(worth))
        return length

    def _price(self, num_requests: int) -> None:
        """Tell the prices again, where they may be others."""
        self._num_priced += 1
        is_known = self._costs.know_base(num_requests)
        if is_known and num_requests == self._priced_for and self._num_priced % PRICED_STEPS:
            return
        self._priced_for = num_requests if is_known else 0
        self._prices = self._tell_prices(num_requests) if is_known else (0.0,)
        self._best.clear()
        self._is_worthwhile = self._best_length(1.0) > 0

    def _tell_prices(self, num_requests: int) -> Sequence[float]:
        """By length, as far as they can be told: beyond what is known only one more is tried."""
        num_drafting = min(num_requests, self._num_drafting or num_requests)
        line = self._costs.line(num_requests)
        pass_seconds = self._costs.pass_seconds(num_drafting)
        base = line.seconds(num_requests)
        seconds = [base]
        for length in range(1, self._longest + 1):
            num_tokens = num_requests + num_drafting * length
            seconds.append(line.seconds(num_tokens) + pass_seconds * length)
            if num_tokens >= line.end:
                self._priced_for = 0  # it will be known soon
                break
        gains = draft_gains(self.acceptance, len(seconds) - 1)
        rate = max(
            (num_requests + num_drafting * gain) / cost
            for gain, cost in zip(gains, seconds, strict=True)
        )
        return [MARGIN * rate * (cost - base) / num_drafting for cost in seconds]

    # Learning

    def observe_draft(self, request: Request, num_tokens: int, num_accepted: int) -> None:
        """A draft was verified: of its `num_tokens`, the first `num_accepted` were right."""
        tried = min(num_tokens, num_accepted + 1)
        self._accepted = ENGINE_MEMORY * self._accepted + num_accepted
        self._tried = ENGINE_MEMORY * self._tried + tried
        history = request.draft_history
        if history is None:
            return
        history.accepted = REQUEST_MEMORY * history.accepted + num_accepted
        history.tried = REQUEST_MEMORY * history.tried + tried
        history.probe_interval = min(max(FIRST_PROBE, 2 * history.probe_interval), LAST_PROBE)
        is_last = self._is_model and history.probe_interval > LAST_MODEL_PROBE
        history.steps_to_probe = NEVER if is_last else history.probe_interval

    def observe_step(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        """A step was committed that took `seconds`, proposing included."""
        if not self._is_adaptive:
            return
        grants = plan.grants
        num_drafting = sum(grant.num_draft_tokens > 0 for grant in grants)
        if num_drafting:
            before = self._num_drafting or num_drafting
            self._num_drafting = before + (num_drafting - before) / 8
        if all(
            grant.samples and grant.num_tokens == 1 + grant.num_draft_tokens for grant in grants
        ):
            self._costs.add_step(
                plan.num_tokens, seconds - result.proposal_seconds, has_drafts=bool(num_drafting)
            )
        self._patience.add_step(1.0 if self._is_model else seconds)
        num_asked = sum(grant.max_draft_tokens > 0 for grant in grants)
        if num_asked:
            self._observe_call(plan, result, num_asked)

    def _observe_call(self, plan: StepPlan, result: StepResult, num_asked: int) -> None:
        """Somebody was asked for drafts; it counts also when nothing came of it."""
        num_passes = max(result.num_proposed_tokens or (), default=0)
        self._costs.add_proposing(num_asked, num_passes, result.proposal_seconds)
        if self._is_model and not num_passes and not plan.draft_token_budget:
            return  # it had no room to catch up
        # A draft model is asked at the price of planning ahead, whatever it answers.
        cost = 1.0 if self._is_model else result.proposal_seconds
        self._patience.add_call(cost, found=num_passes > 0)


def _probe(history: DraftHistory) -> int:
    """One token now and then: what does not repeat itself now may do so later. A probe stays open
    until a draft was verified."""
    history.steps_to_probe -= 1
    return int(history.steps_to_probe < 0)


def draft_gains(acceptance: float, longest: int) -> list[float]:
    """Tokens that drafts of 0, 1, ... `longest` tokens bring on average."""
    gains = [0.0]
    power = 1.0
    for _ in range(longest):
        power *= acceptance
        gains.append(gains[-1] + power)
    return gains
