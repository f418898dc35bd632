"""The board of a process is read by its parent, also after its end."""

from __future__ import annotations

import os
import signal

from tokenmill.core.processes.channels.frames import receive
from tokenmill.core.processes.child import spawn
from tokenmill.core.processes.watching.board import (
    CALL_BYTES,
    MAX_CALLS,
    NUM_STEPS,
    private_board,
    share_board,
)

from .. import targets


def test_a_parent_reads_what_a_killed_process_did() -> None:
    with spawn(f"{targets.__name__}:{targets.write_on_a_board.__name__}") as child:
        board = share_board(child.sockets[0], 4)
        assert receive(child.sockets[0]) == b"written"
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(60)
        assert board.stage == "loading the model"
        assert board.in_work() == {7: 0, 1: 30, 2: 40}
        assert (board.progress.num_beats, board.progress.num_finished) == (1, 1)
        assert board.progress.is_busy and board.expected_seconds == 0.25


def test_requests_are_in_work_from_launch_to_finish() -> None:
    board = private_board(4)
    assert board.in_work() == board.computed() == {}
    board.launch([(1, 10), (1, 12), (2, 5)])
    assert board.in_work() == {1: 12, 2: 5}, "choices of a request have one number"
    board.launch([(2, 6)])
    assert board.in_work() == {1: 12, 2: 6}
    board.finish()
    assert (board.in_work(), board.computed()) == ({2: 6}, {1: 12, 2: 5})
    board.finish()
    assert (board.in_work(), board.computed()) == ({}, {2: 6})


def test_the_board_keeps_its_last_steps_for_ever() -> None:
    board = private_board(1)
    for step in range(1, 3 * NUM_STEPS):
        board.launch([(step, step)])
        assert board.in_work() == {step: step}
        board.finish()
    for step in range(1, 2 * NUM_STEPS + 1):
        board.launch([(step, step)])
    assert list(board.in_work()) == list(range(NUM_STEPS + 1, 2 * NUM_STEPS + 1))


def test_a_step_may_have_the_most_requests_and_a_stage_a_long_name() -> None:
    board = private_board(3)
    board.launch([(number, 2**24 - 1) for number in range(2**39, 2**39 + 3)])
    assert board.in_work() == dict.fromkeys(range(2**39, 2**39 + 3), 2**24 - 1)
    board.show_stage("ä" * 200)
    assert set(board.stage.removesuffix("\ufffd")) == {"ä"}


def test_a_request_is_being_queued_until_it_is_not() -> None:
    board = private_board(4)
    board.add(3)
    assert board.in_work() == {3: 0}
    board.launch([(0, 5), (1, 2)])
    assert board.in_work() == {3: 0, 1: 2}, "the parent does not know the request 0"
    board.add(0)
    assert board.in_work() == {1: 2}


def test_running_calls_have_their_names_also_if_there_is_no_room_for_all() -> None:
    board = private_board(4)
    assert board.running_calls == ()
    names = [f"call {i}" for i in range(MAX_CALLS)] + ["one more"]
    marks = board.name_calls(names)
    for i in (0, 7, MAX_CALLS - 1, MAX_CALLS):
        marks[i][0] = 1
    assert board.running_calls == ("call 0", "call 7", f"call {MAX_CALLS - 1}")
    marks[7][0] = 0
    assert board.running_calls == ("call 0", f"call {MAX_CALLS - 1}")


def test_a_name_that_does_not_fit_is_left_out_and_the_others_keep_their_places() -> None:
    board = private_board(4)
    marks = board.name_calls(["first", "x" * CALL_BYTES, "last"])
    for mark in marks:
        mark[0] = 1
    assert board.running_calls == ("first", "last")
