"""The suite for executors: they compute plans of a simulated model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ....backends.execution.base import ExecutorProvider
from ....core.config import EngineConfig
from ....core.interfaces import Executor
from . import checks


class ExecutorConformance:
    """The suite for an executor.

    Subclass it as Test..., with a fixture `distributed_executor_backend` that returns the
    executor's class, or an object that is used like one.
    """

    @pytest.fixture
    def executor(self, distributed_executor_backend: ExecutorProvider) -> Iterator[Executor]:
        """An executor that has loaded the simulated model."""
        spec = checks.make_spec()
        if reasons := distributed_executor_backend.reasons_against(spec):
            pytest.skip(f"refused: {'; '.join(reasons)}")
        made = distributed_executor_backend(spec)
        yield made
        made.close()

    def test_it_describes_the_loaded_model(self, executor: Executor) -> None:
        """`info` has the sizes that the engine plans with; `health` finds nothing wrong."""
        checks.check_info(executor)

    def test_steps_are_computed_in_the_order_of_their_launch(self, executor: Executor) -> None:
        """The second of two open steps continues what the first one has computed."""
        checks.check_order(executor)

    def test_every_stage_computes_a_plan_of_other_requests(
        self, distributed_executor_backend: ExecutorProvider
    ) -> None:
        """With `pipeline_parallel_size`, `info.num_stages` plans are launched before the first
        result is asked for. Executors that refuse the size are not asked."""
        spec = checks.make_spec(EngineConfig(pipeline_parallel_size=checks.NUM_STAGES))
        if reasons := distributed_executor_backend.reasons_against(spec):
            pytest.skip(f"refused: {'; '.join(reasons)}")
        made = distributed_executor_backend(spec)
        try:
            checks.check_stages(made)
        finally:
            made.close()

    def test_a_step_that_raises_ends_only_its_own_requests(self, executor: Executor) -> None:
        """`result` raises, and the steps before and after it have results."""
        checks.check_failures(executor)

    def test_long_prompts_arrive_whole(self, executor: Executor) -> None:
        """The executor has no maximum size for a plan; only the model's context is a limit."""
        checks.check_long_prompts(executor)
