"""When drafts are asked for: a trial now and then while they do not pay, a pause while they do.

Both measure the other state while the machine is as it is now. What trials may cost is bounded.
"""

from __future__ import annotations

from enum import Enum

from .costs import StepCosts

SPEEDUP = 1.06
"""Drafts are asked for where they promise steps that are this many times faster. Estimates err, and
what is chosen by them is more often what they flatter."""
TRIAL_STEPS = 8
"""Steps of a trial. The first two bring no drafts where steps are planned ahead."""
TRIAL_PAUSE = 128
"""Steps between trials, unless a new request comes before."""
TRIAL_SHARE = 0.01
"""Time that trials may cost, as a fraction of all; a trial ends early if it costs a step too much."""
CHECK_PAUSE = 128
"""Steps with drafts until steps without are measured again."""


class Phase(Enum):
    """What is done with the requests of a step."""

    OFF = "off"
    """No drafts."""
    TRIAL = "trial"
    """Drafts, to find out whether they pay."""
    ON = "on"
    """Drafts, since they pay."""
    CHECK = "check"
    """No drafts, until enough steps without were measured."""


class TrialBudget:
    """What trials may cost, in steps: it fills slowly, and losses empty it."""

    def __init__(self) -> None:
        self._steps = 1.0

    @property
    def is_left(self) -> bool:
        """Whether a trial may begin."""
        return self._steps > 0

    @property
    def is_overdrawn(self) -> bool:
        """Whether a trial has to end."""
        return self._steps < -1

    def fill(self) -> None:
        """A step without drafts was planned."""
        self._steps = min(1.0, self._steps + TRIAL_SHARE)

    def spend(self, loss: float) -> None:
        """A step of a trial took so many steps longer than its tokens are worth."""
        self._steps = min(1.0, self._steps - loss)


class Phases:
    """The phases of steps with one number of requests."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._left = 0
        """Steps until the phase is thought over."""
        self.phase = Phase.OFF
        self.speedup = 1.0
        """What drafts promise at best, set by the owner while they are asked for."""

    @property
    def asks(self) -> bool:
        """Whether drafts are asked for."""
        return self.phase in (Phase.TRIAL, Phase.ON)

    def advance(self, step: int, budget: TrialBudget, *, has_new: bool) -> None:
        """Go on to this step. `has_new`: a request takes part that was not seen before."""
        self._left -= 1
        is_comparable = self._costs.is_comparable(step)
        if self.phase is Phase.OFF:
            budget.fill()
            if (self._left <= 0 or has_new) and budget.is_left and is_comparable:
                self._enter(Phase.TRIAL, TRIAL_STEPS)
        elif self.phase is Phase.TRIAL:
            if self._left <= 0 or budget.is_overdrawn:
                self._end_trial()
        elif self.phase is Phase.ON:
            if self.speedup < SPEEDUP:
                self._enter(Phase.OFF, TRIAL_PAUSE)
            elif self._left <= 0:
                self._costs.expire()
                self._enter(Phase.CHECK, 0)
        elif is_comparable:
            self._enter(Phase.ON, CHECK_PAUSE)

    def _end_trial(self) -> None:
        if self.speedup < SPEEDUP:
            self._enter(Phase.OFF, TRIAL_PAUSE)
        else:
            self._enter(Phase.ON, CHECK_PAUSE)

    def _enter(self, phase: Phase, steps: int) -> None:
        self.phase, self._left = phase, steps
