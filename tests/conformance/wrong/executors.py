"""Wrong executors: each makes one mistake that the built-in ones do not make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tokenmill.backends.execution.base import ExecutorSpec
from tokenmill.core.interfaces import Computation, ModelInfo, no_progress
from tokenmill.core.plan import StepPlan, StepResult
from tokenmill.testing.conformance.executor import suite

from . import fails


class Around:
    """An executor around the one of the spec. Subclasses make its methods wrong."""

    def __init__(self, spec: ExecutorSpec) -> None:
        self.right = spec.load(no_progress)

    @classmethod
    def reasons_against(cls, spec: ExecutorSpec) -> list[str]:
        return ["it has one process"] if spec.config.num_ranks > 1 else []

    @property
    def info(self) -> ModelInfo:
        return self.right.info

    def launch(self, plan: StepPlan) -> Any:
        return self.right.launch(plan)

    def health(self) -> str | None:
        return self.right.health()

    def close(self) -> None:
        self.right.close()


@fails(suite.check_it_describes_the_loaded_model)
class ForgetsBlocks(Around):
    @property
    def info(self) -> ModelInfo:
        return replace(super().info, num_blocks=1)


@fails(suite.check_steps_are_computed_in_the_order_of_their_launch)
class ComputesDecodesFirst(Around):
    def __init__(self, spec: ExecutorSpec) -> None:
        super().__init__(spec)
        self.plans: list[StepPlan] = []

    def launch(self, plan: StepPlan) -> Any:
        self.plans.insert(len(self.plans) if plan.starts else 0, plan)
        return Computation(self.run_first, plan)

    def run_first(self, plan: StepPlan) -> StepResult:
        return self.right.launch(self.plans.pop(0)).result()


@fails(suite.check_every_stage_computes_a_plan_of_other_requests)
class IgnoresTheNumberOfStages(Around):
    @classmethod
    def reasons_against(cls, spec: ExecutorSpec) -> list[str]:
        return []


@fails(suite.check_a_step_that_raises_ends_only_its_own_requests)
class StopsAtAFailure(Around):
    reason: str | None = None

    def launch(self, plan: StepPlan) -> Any:
        return Computation(self.run_or_stop, plan)

    def run_or_stop(self, plan: StepPlan) -> StepResult:
        try:
            return self.right.launch(plan).result()
        except RuntimeError as error:
            self.reason = str(error)
            raise

    def health(self) -> str | None:
        return self.reason


@fails(suite.check_long_prompts_arrive_whole)
class CutsPrompts(Around):
    def launch(self, plan: StepPlan) -> Any:
        starts = [replace(one, token_ids=one.token_ids[:100_000]) for one in plan.starts]
        return super().launch(replace(plan, starts=tuple(starts)))
