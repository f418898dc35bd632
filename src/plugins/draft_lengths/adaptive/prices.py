"""What drafts of each length take, and which of them make the engine faster.

One part of the seconds is for a step that has any drafts at all, whoever they are for: it is not
planned ahead, and the speculator is called. The others are what each request's own tokens take beyond
that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .step_costs import StepCosts

LEVELS = 32
"""Acceptance probabilities are told apart in so many steps."""
MARGIN = 1.08
"""A step with drafts must promise to be so many times faster. Estimates err, and what is chosen by them is
more often what they flatter: with 1.04, the steps of 32 requests that had drafts took some hundredths longer
than what they brought. Where drafts that are always right promise less, probes are rare."""


class Choice(NamedTuple):
    """The best draft for one request."""

    length: int
    gain: float
    """Tokens that it brings on average."""
    seconds: float
    """Its own."""


NOTHING = Choice(0, 0.0, 0.0)


class DraftPrices:
    """Those of one moment, for a number of requests."""

    def __init__(
        self,
        costs: StepCosts,
        num_requests: int,
        num_drafting: float,
        acceptance: float,
        longest: int,
    ) -> None:
        """`num_drafting` of the requests are expected to share a step's drafts, all accepted with the
        same probability; no draft has more than `longest` tokens."""
        line = costs.line(num_requests)
        base = line.seconds(num_requests)
        pass_seconds = costs.pass_seconds(num_drafting)
        seconds = [base]
        self.are_final = True
        """False when one length more is to be tried, whose seconds are not known yet."""
        for length in range(1, longest + 1):
            num_tokens = num_requests + num_drafting * length
            seconds.append(line.seconds(num_tokens) + pass_seconds * length)
            if num_tokens >= line.end:
                self.are_final = False
                break
        gains = draft_gains(acceptance, len(seconds) - 1)
        self._vain = costs.vain_seconds(num_requests)
        """What a step with drafts pays for those in which nothing was found."""
        self._rate = max(
            (num_requests + num_drafting * gain) / (cost + (gain > 0) * self._vain)
            for gain, cost in zip(gains, seconds, strict=True)
        )
        shared = first = (
            min(line.seconds(num_requests + 1) + costs.pass_seconds(1), seconds[1]) - base
        )
        if num_drafting >= 1.5:  # else there are no others to tell by what one of them takes
            shared = max(0.0, first - (seconds[1] - base - first) / (num_drafting - 1))
        self._num_requests = num_requests
        self._base = base
        self._shared = shared
        self._own = [(cost - base - shared) / num_drafting for cost in seconds[1:]]
        """By length, from 1 on."""
        verifying = line.seconds(num_requests + num_drafting) - base
        self.probe_steps = verifying / num_drafting / base
        """Steps without drafts that it takes to verify a draft of one token."""
        self._best: dict[int, Choice] = {}
        """By level of acceptance, as far as they were asked for."""
        always_right = [self.choose(1.0)] * num_requests
        always_found = [1.0] * num_requests
        self.could_be_worth_it = self._are_faster(always_right, always_found, shared)
        """Whether drafts that are always right are, where none are searched for in vain."""

    def choose(self, acceptance: float) -> Choice:
        """The best draft for a request, if there are drafts in the step."""
        level = round(acceptance * LEVELS)
        choice = self._best.get(level)
        if choice is None:
            choice = self._best[level] = self._find_best(level / LEVELS)
        return choice

    def are_worth_it(self, choices: Sequence[Choice], found: Sequence[float]) -> bool:
        """Whether a step with these drafts promises to be the faster one by the margin; each is found
        with its own probability."""
        return self._are_faster(choices, found, self._shared + self._vain)

    def _are_faster(self, choices: Sequence[Choice], found: Sequence[float], shared: float) -> bool:
        gain = seconds = 0.0
        none = 1.0
        for choice, probability in zip(choices, found, strict=True):
            if choice.length:
                gain += probability * choice.gain
                seconds += probability * choice.seconds
                none *= 1.0 - probability
        seconds += shared * (1.0 - none)
        off = self._num_requests / self._base
        return gain > 0 and self._num_requests + gain > MARGIN * off * (self._base + seconds)

    def _find_best(self, acceptance: float) -> Choice:
        gains = draft_gains(acceptance, len(self._own))[1:]
        worth = [
            gain - self._rate * seconds for gain, seconds in zip(gains, self._own, strict=True)
        ]
        best = worth.index(max(worth))
        return Choice(1 + best, gains[best], self._own[best]) if worth[best] > 0 else NOTHING


def draft_gains(acceptance: float, longest: int) -> list[float]:
    """Tokens that drafts of 0, 1, ... `longest` tokens bring on average."""
    gains = [0.0]
    power = 1.0
    for _ in range(longest):
        power *= acceptance
        gains.append(gains[-1] + power)
    return gains
