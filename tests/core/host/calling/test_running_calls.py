"""The hooks that run in an engine's process can be read also if names or the board are damaged."""

from __future__ import annotations

from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.host.calling.failure_log import FailureLog
from tokenmill.core.host.calling.guard import DECIDES, Guard
from tokenmill.core.host.calling.running_calls import RunningCall, read_calls, show_calls
from tokenmill.core.processes.watching.board import private_board

LOG = FailureLog(lambda event: None)


def test_names_may_have_tabs_and_lines() -> None:
    board, seen = private_board(1), []
    guards = [
        Guard(lambda: seen.append(read_calls(board)), Source(plugin=name), "admit", DECIDES, LOG)
        for name in ("a\tb", "a\nb", "plain")
    ]
    show_calls(guards, board)
    for guard in guards:
        guard()
    assert [[(call.plugin, call.hook) for call in calls] for calls in seen] == [
        [("a b", "admit")],
        [("a b", "admit")],
        [("plain", "admit")],
    ]


def test_names_that_a_crash_has_damaged_are_left_out() -> None:
    board = private_board(1)
    for mark in board.name_calls(["one\ttwo", "", "a\tb\tc\td", "plugin\thook\tsource"]):
        mark[0] = 1
    assert read_calls(board) == (RunningCall(plugin="plugin", hook="hook", source="source"),)
