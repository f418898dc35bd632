"""Hooks that block the main thread of a server: interrupted, or the process ends and names them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.host.calling.failure_log import FailureLog
from tokenmill.core.host.calling.guard import DECIDES, FAILED, Guard
from tokenmill.core.host.calling.main_thread_limit import MainThreadLimit


def spin() -> None:
    while True:
        try:
            while True:
                pass
        except Exception:
            continue


def sleep() -> None:
    time.sleep(3600)


def match() -> None:
    re.match("(a*)*b", "a" * 100)


@pytest.mark.parametrize("hang", [spin, sleep, match])
def test_a_hook_that_hangs_is_interrupted_and_counted(hang: Callable[[], None]) -> None:
    guard = Guard(hang, Source(plugin="slow"), "parse", DECIDES, FailureLog(lambda event: None))
    with MainThreadLimit([guard], 0.2):
        assert guard() is FAILED
        time.sleep(0.3)  # what runs outside of a hook is not interrupted
    assert guard.stats.failures == 1


NATIVE = """
import ctypes
from tokenmill.core.contract.plugin_info import Source
from tokenmill.core.host.calling.failure_log import FailureLog
from tokenmill.core.host.calling.guard import DECIDES, Guard
from tokenmill.core.host.calling.main_thread_limit import MainThreadLimit

libc = ctypes.{library}(None)

def crash():
    ctypes.string_at(0)

def hang():
    lock = (ctypes.c_char * 64)()
    libc.pthread_mutex_init(lock, None)
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)  # waits for itself, and no signal ends it

source = Source(plugin="slow", distribution="acme", version="1.0")
guard = Guard({act}, source, "parse", DECIDES, FailureLog(lambda event: None))
with MainThreadLimit([guard], 0.3):
    guard()
"""


LEAVES_LOCK, KEEPS_LOCK = "CDLL", "PyDLL"


def run(act: str, library: str = LEAVES_LOCK) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NATIVE.format(act=act, library=library)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("library", [LEAVES_LOCK, KEEPS_LOCK])
def test_a_hook_that_hangs_in_native_code_ends_the_process_and_is_named(library: str) -> None:
    done = run("hang", library)
    assert done.returncode == 1
    assert library == KEEPS_LOCK or "server_ends" in done.stderr
    assert "slow" in done.stderr and "parse" in done.stderr


def test_a_hook_that_crashes_in_native_code_is_named() -> None:
    done = run("crash")
    assert done.returncode == -signal.SIGSEGV
    assert "'parse' of plugin 'slow' (acme 1.0)" in done.stderr
