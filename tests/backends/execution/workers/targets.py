"""What the worker processes of these tests do."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import replace

import torch

from tokenmill.backends.execution.workers.division import prepare_process
from tokenmill.backends.execution.workers.group import GroupRanks
from tokenmill.backends.execution.workers.messages import StartRank
from tokenmill.backends.execution.workers.stages import StageExecutor, StageLink
from tokenmill.backends.execution.workers.worker import RankModel
from tokenmill.core.errors import ConfigError, DeviceError
from tokenmill.core.interfaces import Progress
from tokenmill.core.plan import StepPlan, StepResult
from tokenmill.testing.conformance.executor.worker import load_rank
from tokenmill.testing.simulated.executor import SimulatedExecutor

CRASH, HANG, LOSE, ALONE, DISAGREE, EARLY, LATE, SEVER = range(990, 998)
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


class Staged(SimulatedExecutor):
    """The first of two stages sends the step's id to the second one, unless one of them raises."""

    def __init__(self, rank: int, link: StageLink) -> None:
        super().__init__(num_blocks=256, block_size=16, vocab_size=1000)
        self._rank = rank
        self._link = link

    def run(self, plan: StepPlan) -> StepResult:
        fails = (EARLY, LATE)[self._rank]
        if any(begun.token_ids[0] == fails for begun in plan.starts):
            raise RuntimeError("planted")
        if self._rank == 0:
            self._link.send(torch.tensor([[plan.step_id]]))
        else:
            assert self._link.receive(1, 1, torch.int64).item() == plan.step_id
        return super().run(plan)


def staged(start: StartRank, progress: Progress) -> RankModel:
    prepare_process(start)
    link = StageLink(*((None, 1), (0, None))[start.rank], torch.device("cpu"))
    executor = StageExecutor(Staged(start.rank, link), link)
    return replace(load_rank(start, progress), executor=executor)


class Severed(SimulatedExecutor):
    """Ranks that add up sums in each step. Some prompts cut their connection."""

    def __init__(self, rank: int) -> None:
        super().__init__(num_blocks=256, block_size=16, vocab_size=1000)
        self._rank, self._ranks = rank, GroupRanks(rank, 2)

    def run(self, plan: StepPlan) -> StepResult:
        if self._rank == 1 and any(begun.token_ids[0] == SEVER for begun in plan.starts):
            _cut_connections()
        self._ranks.sum(torch.zeros(1))
        return super().run(plan)


def _cut_connections() -> None:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                one.shutdown(socket.SHUT_RDWR)


def severed(start: StartRank, progress: Progress) -> RankModel:
    prepare_process(start)
    return replace(load_rank(start, progress), executor=Severed(start.rank))


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
