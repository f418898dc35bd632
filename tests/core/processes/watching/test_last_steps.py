"""The last steps of a process are read by its parent, whatever happens to the process."""

from __future__ import annotations

import os
import random
import signal

import msgspec
import pytest

from tokenmill.core.processes.channels.frames import receive
from tokenmill.core.processes.child import spawn
from tokenmill.core.processes.watching.board import share_board
from tokenmill.core.processes.watching.last_steps import (
    LAST_STEPS_BYTES,
    MAX_NAMED,
    MAX_STEPS,
    SLOT_BYTES,
    FinishedStep,
    LastSteps,
    PlannedStep,
)

from .. import targets
from ..targets import launch, planned_step

TIMES = FinishedStep(0.1, 1.0, 2.0, 2.5, 0.25, False)


def test_a_parent_reads_the_last_steps_of_a_killed_process() -> None:
    with spawn(f"{targets.__name__}:{targets.show_steps.__name__}") as child:
        board = share_board(child.sockets[0], 4)
        assert receive(child.sockets[0]) == b"shown"
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(60)
        assert board.last_steps is not None
        found = board.last_steps.read()
    assert [step.step_id for step, _ in found] == list(range(6, 6 + MAX_STEPS))
    assert [times is None for _, times in found] == [False] * (MAX_STEPS - 1) + [True]


def test_a_step_that_takes_the_place_of_an_older_one_has_not_its_times() -> None:
    steps = LastSteps(memoryview(bytearray(LAST_STEPS_BYTES)))
    assert steps.read() == []
    launch(steps, planned_step(5))
    assert steps.read() == [(planned_step(5), None)]
    steps.finish(5, *msgspec.structs.astuple(TIMES))
    assert steps.read() == [(planned_step(5), TIMES)]
    launch(steps, planned_step(5 + MAX_STEPS))
    assert steps.read() == [(planned_step(5 + MAX_STEPS), None)]


def test_ids_that_are_too_long_are_left_out() -> None:
    steps = LastSteps(memoryview(bytearray(LAST_STEPS_BYTES)))
    launch(steps, planned_step(1, ("x" * SLOT_BYTES,)))
    [(step, _)] = steps.read()
    assert (step.requests, step.num_requests) == ((), 1)
    launch(steps, planned_step(2, ("y" * 40,) * MAX_NAMED))
    assert steps.read()[1][0].requests == ("y" * 40,) * MAX_NAMED


def test_each_step_has_its_own_names() -> None:
    steps, few, many = (
        LastSteps(memoryview(bytearray(LAST_STEPS_BYTES))),
        ("a",),
        tuple("bcdefghijk"),
    )
    for step_id, names in enumerate([(few, ()), (few, ("x",)), (few, ()), (many, ()), (few, many)]):
        launch(steps, planned_step(step_id, *names))
    found = [(step.requests, step.preempted) for step, _ in steps.read()]
    first = many[:MAX_NAMED]
    assert found == [(few, ()), (few, ("x",)), (few, ()), (first, ()), (few, first)]


@pytest.mark.parametrize("seed", range(5))
def test_damaged_memory_is_no_error(seed: int) -> None:
    memory = bytearray(LAST_STEPS_BYTES)
    steps = LastSteps(memoryview(memory))
    for step_id in range(MAX_STEPS):
        launch(steps, planned_step(step_id))
    rng = random.Random(seed)
    for _ in range(2000):
        memory[rng.randrange(len(memory))] = rng.randrange(256)
    assert all(isinstance(step, PlannedStep) for step, _ in steps.read())
