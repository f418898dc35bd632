"""Wrong executors: each makes one mistake that the built-in ones do not make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tokenmill.backends.execution.base import ExecutorSpec
from tokenmill.core.interfaces import Computation, ModelInfo, no_progress
from tokenmill.core.plan import StepPlan, StepResult
from tokenmill.testing import ExecutorConformance


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


class TestForgetsBlocks(ExecutorConformance):
    fails = "test_it_describes_the_loaded_model"

    @pytest.fixture
    def distributed_executor_backend(self) -> Any:
        class Backend(Around):
            @property
            def info(self) -> ModelInfo:
                return replace(super().info, num_blocks=1)

        return Backend


class TestComputesDecodesFirst(ExecutorConformance):
    fails = "test_steps_are_computed_in_the_order_of_their_launch"

    @pytest.fixture
    def distributed_executor_backend(self) -> Any:
        class Backend(Around):
            def __init__(self, spec: ExecutorSpec) -> None:
                super().__init__(spec)
                self.plans: list[StepPlan] = []

            def launch(self, plan: StepPlan) -> Any:
                self.plans.insert(len(self.plans) if plan.starts else 0, plan)
                return Computation(self.run_first, plan)

            def run_first(self, plan: StepPlan) -> StepResult:
                return self.right.launch(self.plans.pop(0)).result()

        return Backend


class TestIgnoresTheNumberOfStages(ExecutorConformance):
    fails = "test_every_stage_computes_a_plan_of_other_requests"

    @pytest.fixture
    def distributed_executor_backend(self) -> Any:
        class Backend(Around):
            @classmethod
            def reasons_against(cls, spec: ExecutorSpec) -> list[str]:
                return []

        return Backend


class TestStopsAtAFailure(ExecutorConformance):
    fails = "test_a_step_that_raises_ends_only_its_own_requests"

    @pytest.fixture
    def distributed_executor_backend(self) -> Any:
        class Backend(Around):
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

        return Backend


class TestCutsPrompts(ExecutorConformance):
    fails = "test_long_prompts_arrive_whole"

    @pytest.fixture
    def distributed_executor_backend(self) -> Any:
        class Backend(Around):
            def launch(self, plan: StepPlan) -> Any:
                starts = [replace(one, token_ids=one.token_ids[:100_000]) for one in plan.starts]
                return super().launch(replace(plan, starts=tuple(starts)))

        return Backend
