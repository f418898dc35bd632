"""An executor with stages, whose results and errors come late, in another order, or not at all.

Each stage has simulated KV slots of its own, and computes the plans in order. How fast a plan moves
on is random. So a plan that overwrites what an earlier plan still needs in a later stage changes
the output.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...core.interfaces import ModelInfo
from ...core.plan import Grant, StepPlan, StepResult
from ...core.requests.media import MediaItem
from .executor import SimulatedExecutor

DELAYS = (0, 0, 0, 1, 3)
"""Turns that a result or an error needs to arrive, each with the same probability."""
PATIENCE = 10
"""Turns after which a lost result is given up."""
SPEED = 0.8
"""Probability that a stage computes its next plan in a turn."""


class PlantedError(RuntimeError):
    """A step raised, or its result was lost."""


@dataclass(frozen=True, slots=True)
class Fate:
    """The fault of one step."""

    fails_at: int | None = None
    """The stage in which the step raises."""
    is_lost: bool = False
    """Whether the step is computed, and its result never arrives."""


class Journey:
    """A launched plan on its way through the stages."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self.stage = 0
        """The next stage."""
        self.fate = Fate()
        self.delay = 0
        """Turns until the outcome arrives."""
        self.computed: StepResult | None = None
        """The result of the earlier stages, which the later ones must share."""
        self.outcome: StepResult | PlantedError | None = None
        """None: the plan has not passed all stages."""
        self.is_taken = False

    @property
    def has_arrived(self) -> bool:
        return self.outcome is not None and self.delay <= 0

    def result(self) -> StepResult:
        """The result, which must have arrived."""
        assert self.outcome is not None
        self.is_taken = True
        if isinstance(self.outcome, PlantedError):
            raise self.outcome
        return self.outcome


class SimulatedPipeline:
    """Computes plans in stages, when `advance` is called.

    With one stage, a plan may continue the one before it. With several, the plans in flight must
    not have a request in common.
    """

    def __init__(
        self,
        stages: Sequence[SimulatedExecutor],
        rng: random.Random,
        choose_fate: Callable[[StepPlan, Sequence[Grant]], Fate],
    ) -> None:
        """`choose_fate` gets a plan, and the grants that it computes. The others are of requests
        that were lost with an earlier step."""
        self.num_overtakings = 0
        """Outcomes that arrived before the outcome of an earlier plan."""
        self._stages = stages
        self._rng = rng
        self._choose_fate = choose_fate
        self._journeys: list[Journey] = []

    @property
    def info(self) -> ModelInfo:
        return replace(self._stages[0].info, num_stages=len(self._stages))

    def launch(self, plan: StepPlan) -> Journey:
        self._journeys = [one for one in self._journeys if not one.is_taken]
        if len(self._stages) > 1:
            assert len(self._journeys) < len(self._stages), "more plans than stages are in flight"
            in_flight = {grant.engine_id for one in self._journeys for grant in one.plan.grants}
            assert not any(grant.engine_id in in_flight for grant in plan.grants), (
                "two plans in flight have a request in common"
            )
        journey = Journey(plan)
        self._journeys.append(journey)
        return journey

    def take_media(self, items: Sequence[MediaItem]) -> None:
        for stage in self._stages:
            stage.take_media(items)

    def advance(self) -> None:
        """Let a turn pass: each stage may compute its next plan, and outcomes may arrive."""
        underway = [one for one in self._journeys if not one.has_arrived]
        for journey in underway:
            journey.delay -= 1
        for number in reversed(range(len(self._stages))):
            here = next((one for one in underway if one.stage == number), None)
            if here is not None and self._rng.random() < SPEED:
                self._compute(here, self._stages[number])
        first_missing = next((i for i, one in enumerate(underway) if not one.has_arrived), None)
        if first_missing is not None:
            self.num_overtakings += sum(one.has_arrived for one in underway[first_missing:])

    def health(self) -> str | None:
        """None: nothing can be lost for good."""
        return None

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _compute(self, journey: Journey, stage: SimulatedExecutor) -> None:
        if journey.stage == 0:
            journey.fate = self._choose_fate(journey.plan, stage.computes(journey.plan))
        fate = journey.fate
        if fate.fails_at is not None and fate.fails_at <= journey.stage:
            stage.crash(journey.plan)  # the later stages then compute nothing
        else:
            result = stage.run(journey.plan)
            assert journey.computed in (None, result), "stages computed different tokens"
            journey.computed = result
        journey.stage += 1
        if journey.stage == len(self._stages):
            is_whole = fate.fails_at is None and not fate.is_lost
            journey.outcome = journey.computed if is_whole else PlantedError("planted")
            journey.delay = PATIENCE if fate.is_lost else self._rng.choice(DELAYS)
