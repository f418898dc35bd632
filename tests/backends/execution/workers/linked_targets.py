"""Worker processes that are connected with each other: stages, and ranks that add up sums."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import replace

import torch

from tokenmill.backends.execution.workers.division import prepare_process
from tokenmill.backends.execution.workers.group import GroupRanks
from tokenmill.backends.execution.workers.messages import StartRank
from tokenmill.backends.execution.workers.stages import StageExecutor, StageLink
from tokenmill.backends.execution.workers.worker import RankModel
from tokenmill.core.interfaces import Progress
from tokenmill.core.plan import StepPlan, StepResult
from tokenmill.testing.conformance.executor.worker import load_rank
from tokenmill.testing.simulated.executor import SimulatedExecutor

EARLY, LATE, SEVER = range(995, 998)
"""First tokens of prompts, and what their steps do."""


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
