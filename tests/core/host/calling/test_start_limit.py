"""Plugins that hang while an engine or a server starts are interrupted, or end it and are named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.contract.start_calls import START_CALLS
from tokenmill.core.errors import HookTimeoutError
from tokenmill.core.host.calling import start_limit
from tokenmill.core.host.calling.start_limit import StartLimit
from tokenmill.core.log import event_fields
from tokenmill.core.processes.watching.stalls import Stall

SOURCE = Source(plugin="slow", distribution="acme", version="1.0")


def test_python_code_in_the_main_thread_is_interrupted() -> None:
    with StartLimit(0.2, interrupts=True):
        with pytest.raises(HookTimeoutError, match=r"no progress for 0\.2 s"):
            START_CALLS.call("importing", SOURCE, time.sleep, 3600)
        time.sleep(0.6)  # what runs outside of a plugin is not interrupted
    assert not START_CALLS.running


def test_the_innermost_call_is_shown() -> None:
    shown: list[str] = []
    with StartLimit(0, shown.append):
        START_CALLS.call("importing", SOURCE, START_CALLS.call, "building", SOURCE, len, "")
    begun = ["importing plugin 'slow' (acme 1.0)", "building plugin 'slow' (acme 1.0)"]
    assert shown == [*begun, begun[0], ""]


def test_a_call_that_takes_long_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(start_limit, "SLOW_SECONDS", 0.1)
    monkeypatch.setattr(start_limit, "TICK_SECONDS", 0.05)
    with StartLimit(0):
        START_CALLS.call("importing", SOURCE, time.sleep, 1.0)
    [record] = [one for one in caplog.records if one.msg == "plugin_start_slow"]
    assert event_fields(record)["stage"] == "importing plugin 'slow' (acme 1.0)"


PROGRAM = """
import ctypes, threading, time
from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.contract.start_calls import START_CALLS
from tokenmill.core.host.calling.start_limit import StartLimit

def hang_in(library):
    lock = (ctypes.c_char * 64)()
    library.pthread_mutex_init(lock, None)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)  # waits for itself, and no signal ends it

def start():
    START_CALLS.call("importing", Source(plugin="slow", distribution="acme", version="1.0"), hang)

with StartLimit(0.3, interrupts=True):
    {act}
    time.sleep(60)
"""
KEEPS_LOCK = "hang = lambda: hang_in(ctypes.PyDLL(None)); start()"
LEAVES_LOCK = "hang = lambda: hang_in(ctypes.CDLL(None)); start()"
IN_A_THREAD = "hang = lambda: time.sleep(60); threading.Thread(target=start, daemon=True).start()"


@pytest.mark.parametrize("act", [KEEPS_LOCK, LEAVES_LOCK, IN_A_THREAD])
def test_what_cannot_be_interrupted_ends_the_process_and_is_named(act: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(act=act)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 1
    assert "importing plugin 'slow' (acme 1.0)" in done.stderr


def test_a_signal_that_comes_late_does_not_end_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread looks at a call that has ended meanwhile, and then sends its signal."""
    looks, has_ended = threading.Event(), threading.Event()
    handlers: list[object] = []

    def check(stall: Stall, now: float, call: object) -> float:
        looks.set()
        has_ended.wait(30)
        return 0.15

    monkeypatch.setattr(Stall, "check", check)
    monkeypatch.setattr(
        signal, "pthread_kill", lambda thread, number: handlers.append(signal.getsignal(number))
    )
    before = signal.getsignal(signal.SIGALRM)
    with StartLimit(0.1, interrupts=True):
        START_CALLS.call("importing", SOURCE, looks.wait, 30)
        threading.Timer(0.2, has_ended.set).start()
    assert handlers, "the thread sent its signal"
    assert before not in handlers
