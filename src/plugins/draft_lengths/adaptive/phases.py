"""Decides in which steps drafts are asked for.

While drafts do not pay, they are tried now and then. While they pay, they pause now and then. So
both states are measured at the current speed of the machine. The cost of trials is limited.
"""

from __future__ import annotations

from enum import Enum

from .costs import FRESH_STEPS, StepCosts

SPEEDUP = 1.06
"""Minimum estimated speedup for which drafts are asked for. It is above 1 because choosing the
highest of several estimates favours those that are too high."""
TRIAL_STEPS = 8
"""Number of steps of a trial. If steps are planned ahead, the first two have no drafts."""
TRIAL_PAUSE = 128
"""Number of steps between trials, unless a new request arrives earlier."""
TRIAL_SHARE = 0.01
"""Time that trials may cost, as a fraction of the total time."""
CHECK_PAUSE = 128
"""Number of steps with drafts before steps without drafts are measured again."""


class Phase(Enum):
    """Whether drafts are asked for, and why."""

    OFF = "off"
    """No drafts."""
    TRIAL = "trial"
    """Drafts, to find out whether they pay."""
    ON = "on"
    """Drafts, since they pay."""
    CHECK = "check"
    """No drafts, until enough steps without drafts are measured."""


class TrialBudget:
    """The time that trials may cost, in steps. It fills slowly, and losses reduce it."""

    def __init__(self) -> None:
        self._steps = 1.0

    @property
    def is_left(self) -> bool:
        """Whether a trial may begin."""
        return self._steps > 0

    @property
    def is_overdrawn(self) -> bool:
        """Whether a trial must end early: it has cost a step more than allowed."""
        return self._steps < -1

    def fill(self) -> None:
        """Add the share of a planned step without drafts."""
        self._steps = min(1.0, self._steps + TRIAL_SHARE)

    def spend(self, loss: float) -> None:
        """Subtract the loss of a trial's step: its extra cost minus its extra tokens, in steps."""
        self._steps = min(1.0, self._steps - loss)


class Phases:
    """The phases of steps with about the same number of requests."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._left = 0
        """Number of steps until the phase may change."""
        self.phase = Phase.OFF
        self.speedup = 1.0
        """The highest estimated speedup. The owner sets it while drafts are asked for."""

    @property
    def asks(self) -> bool:
        """Whether drafts are asked for."""
        return self.phase in (Phase.TRIAL, Phase.ON)

    def advance(self, step: int, budget: TrialBudget, *, has_new: bool) -> None:
        """Move on to this step. `has_new` says that it has a request that was not seen before."""
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
            # The machine may have changed its pace during the trial: check its costs soon.
            self._enter(Phase.ON, FRESH_STEPS)

    def _enter(self, phase: Phase, steps: int) -> None:
        self.phase, self._left = phase, steps
