"""A model that needs no weights, in this process or in a worker process of the executor."""

from __future__ import annotations

from ....backends.execution.identity import Identity
from ....backends.execution.workers.messages import StartRank
from ....backends.execution.workers.worker import RankModel
from ....core.config import EngineConfig
from ....core.interfaces import Progress
from ....core.plan import StepPlan, StepResult
from ...simulated.executor import SimulatedExecutor

NUM_BLOCKS, BLOCK_SIZE, VOCAB_SIZE = 2**15, 16, 1000
FAILS = 999
"""First token of a prompt whose step raises."""
LOAD_RANK = f"{__name__}:load_rank"


class FailingExecutor(SimulatedExecutor):
    """Raises in the step in which a prompt starts with FAILS."""

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step, or raise."""
        if any(start.token_ids[0] == FAILS for start in plan.starts):
            self.crash(plan)
            raise RuntimeError("planted")
        return super().run(plan)


def load_simulated(progress: Progress) -> FailingExecutor:
    """Load the simulated model."""
    progress("loading the simulated model", 1.0)
    return FailingExecutor(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, vocab_size=VOCAB_SIZE)


def identify_simulated() -> Identity:
    """The identity of every process that computes the simulated model."""
    return Identity(version="1", model="simulated", plugins=(), choices={}, config=EngineConfig())


def load_rank(start: StartRank, progress: Progress) -> RankModel:
    """Load the simulated model in a worker."""
    return RankModel(executor=load_simulated(progress), identity=identify_simulated())
