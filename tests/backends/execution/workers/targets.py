"""What the worker processes of these tests do. Those that use torch are in `linked_targets`: its
import would take most of the time of a worker that computes nothing."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

from tokenmill.backends.execution.workers.messages import StartRank
from tokenmill.backends.execution.workers.worker import RankModel
from tokenmill.core.errors import ConfigError, DeviceError
from tokenmill.core.interfaces import Progress
from tokenmill.core.plan import StepPlan, StepResult
from tokenmill.testing.conformance.executor.worker import load_rank
from tokenmill.testing.simulated.executor import SimulatedExecutor

CRASH, HANG, LOSE, ALONE, DISAGREE = range(990, 995)
"""First tokens of prompts, and what their steps do."""


class Faulty(SimulatedExecutor):
    """Fails in the way that the first token of a prompt asks for."""

    def run(self, plan: StepPlan) -> StepResult:
        for begun in plan.starts:
            match begun.token_ids[0]:
                case 990:
                    os.kill(os.getpid(), signal.SIGSEGV)
                case 991:
                    os.kill(os.getpid(), signal.SIGSTOP)
                case 992:
                    raise DeviceError("the device failed")
        return super().run(plan)


def faulty(start: StartRank, progress: Progress) -> RankModel:
    executor = Faulty(num_blocks=256, block_size=16, vocab_size=1000)
    return replace(load_rank(start, progress), executor=executor)


class Unequal(SimulatedExecutor):
    """Ranks that behave differently for some prompts."""

    def __init__(self, rank: int) -> None:
        super().__init__(num_blocks=256 - rank, block_size=16, vocab_size=1000)
        self.rank = rank

    def run(self, plan: StepPlan) -> StepResult:
        for begun in plan.starts:
            if begun.token_ids[0] == ALONE and self.rank == 1:
                raise RuntimeError("only here")
            if begun.token_ids[0] == ALONE:
                time.sleep(600)  # like a wait for a partial sum that never comes
        result = super().run(plan)
        if self.rank == 1 and any(begun.token_ids[0] == DISAGREE for begun in plan.starts):
            return replace(result, token_ids=((0,),))
        return result


def unequal(start: StartRank, progress: Progress) -> RankModel:
    return replace(load_rank(start, progress), executor=Unequal(start.rank))


def mixed(start: StartRank, progress: Progress) -> RankModel:
    """A rank on another machine, with another type of numbers."""
    found = load_rank(start, progress)
    if start.rank == 1:
        found.executor.info = replace(found.executor.info, dtype="bfloat16")
    return found


def different(start: StartRank, progress: Progress) -> RankModel:
    found = load_rank(start, progress)
    config = replace(found.identity.config, seed=7)
    other = replace(found.identity, version="0", plugins=("spy (own 1)",), config=config)
    return replace(found, identity=other)


def refusing(start: StartRank, progress: Progress) -> RankModel:
    raise ConfigError("this model cannot work")


def dying(start: StartRank, progress: Progress) -> RankModel:
    os._exit(3)


def sighted(start: StartRank, progress: Progress) -> RankModel:
    """A model that reads images."""
    executor = SimulatedExecutor(num_blocks=256, block_size=16, vocab_size=1000, media_bytes=400)
    return replace(load_rank(start, progress), executor=executor)


def sighted_differently(start: StartRank, progress: Progress) -> RankModel:
    """Each rank knows something else about images."""
    executor = SimulatedExecutor(num_blocks=256, block_size=16, media_bytes=400 + start.rank)
    return replace(load_rank(start, progress), executor=executor)
