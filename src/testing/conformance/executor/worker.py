"""A model that needs no weights, in this process or in a worker process, and plans for it."""

from __future__ import annotations

from ....backends.execution.base import ExecutorSpec
from ....backends.execution.identity import Identity
from ....backends.execution.workers.messages import StartRank
from ....backends.execution.workers.worker import RankModel
from ....core.config import EngineConfig
from ....core.interfaces import Progress, no_progress
from ....core.plan import Grant, RequestStart, StepPlan, StepResult
from ....core.requests.sampling_params import SamplingParams
from ...simulated.executor import SimulatedExecutor

NUM_BLOCKS, BLOCK_SIZE, VOCAB_SIZE = 2**15, 16, 1000
SEED = 5
FAILS = 999
"""First token of a prompt whose step raises."""
LOAD_RANK = f"{__name__}:load_rank"


class FailingExecutor(SimulatedExecutor):
    """Raises in the step in which a prompt starts with FAILS."""

    def run(self, plan: StepPlan) -> StepResult:
        if any(start.token_ids[0] == FAILS for start in plan.starts):
            self.crash(plan)
            raise RuntimeError("planted")
        return super().run(plan)


def load_simulated(progress: Progress) -> FailingExecutor:
    progress("loading the simulated model", 1.0)
    return FailingExecutor(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, vocab_size=VOCAB_SIZE)


def identify_simulated() -> Identity:
    """The identity of every process that computes the simulated model."""
    return Identity(version="1", model="simulated", plugins=(), choices={}, config=EngineConfig())


def load_rank(start: StartRank, progress: Progress) -> RankModel:
    return RankModel(executor=load_simulated(progress), identity=identify_simulated())


def make_spec(config: EngineConfig | None = None) -> ExecutorSpec:
    """The simulated model, as executors get it."""
    return ExecutorSpec(
        config=config or EngineConfig(),
        progress=no_progress,
        load=load_simulated,
        load_rank=LOAD_RANK,
        identify=identify_simulated,
    )


def prompt_plan(
    engine_id: str, prompt: tuple[int, ...], step_id: int, *, block: int = 0
) -> StepPlan:
    num_blocks = -(-(len(prompt) + 8) // BLOCK_SIZE)
    start = RequestStart(
        engine_id=engine_id,
        token_ids=prompt,
        num_prompt_tokens=len(prompt),
        sampling_params=SamplingParams(),
        seed=SEED,
        stop_token_ids=(),
    )
    grant = Grant(
        engine_id=engine_id,
        start=0,
        num_tokens=len(prompt),
        new_block_ids=(tuple(range(block, block + num_blocks)),),
        samples=True,
    )
    return StepPlan(step_id=step_id, starts=(start,), grants=(grant,))


def decode_plan(engine_id: str, start: int, step_id: int) -> StepPlan:
    grant = Grant(engine_id=engine_id, start=start, num_tokens=1, new_block_ids=(), samples=True)
    return StepPlan(step_id=step_id, grants=(grant,))
