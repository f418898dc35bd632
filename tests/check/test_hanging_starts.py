"""A plugin that hangs in the server's process while it starts: found, named, ended by signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import httpx
import pytest

from tests.core.plugin_packages import Packages
from tests.server_process import running_server

PROGRAM = "tests.api.toy_serve"
LIMIT_SECONDS = 1
HOUR = 3600
SIGNALS = (signal.SIGTERM, signal.SIGINT)
CODE = """
import ctypes, os, sys, time

def hang():
    if "uvicorn" in sys.modules:  # this is the server's process
        print("it hangs", file=sys.stderr, flush=True)
        {act}

{import_time}

class Parser:
    needs_special_tokens = False
    call_syntax = None
    def __init__(self): {build_time}
    def reasons_against(self, chat): {asking_time}
    def parse(self, answer, tools): yield

@hookimpl
def register(registry):
    {register_time}
    registry.offer(kinds.TOOL_CALL_PARSER, "slow", Parser)
"""
STAGES = {
    "import_time": "importing",
    "register_time": "in 'register' of",
    "build_time": "building tool call parser 'slow' of",
    "asking_time": "in 'reasons_against' of tool call parser 'slow' of",
}
ACTS = {
    "Python": f"time.sleep({HOUR})",
    "native code that leaves the lock": f"while True: ctypes.CDLL(None).sleep({HOUR})",
    "native code that keeps the lock": f"ctypes.PyDLL(None).sleep({HOUR})",
}


@contextmanager
def started(
    packages: Packages, stage: str, act: str, limit: float
) -> Iterator[subprocess.Popen[str]]:
    """A server whose plugin hangs in a stage of the start."""
    calls = {name: "hang()" if name == stage else "pass" for name in STAGES}
    packages.install("slow", CODE.format(act=ACTS[act], **calls))
    packages.write_settings("[plugins]\nenable = ['slow']\n[tool_call_parser]\nuse = 'auto'\n")
    command = [sys.executable, "-m", PROGRAM, f"--plugin-start-timeout={limit}"]
    root = str(Path(__file__).parents[2])
    environment = {"PYTHONPATH": os.pathsep.join([str(packages.folder), root, *sys.path])}
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("stage", "act"), list(zip(STAGES, cycle(ACTS))))
def test_the_server_ends_with_status_1_and_names_plugin_and_stage(
    stage: str, act: str, packages: Packages
) -> None:
    with started(packages, stage, act, LIMIT_SECONDS) as process:
        _, log = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "it hangs" in log and "plugin 'slow' (slow 1.0)" in log
        assert "HookTimeoutError" in log or f"{STAGES[stage]} plugin 'slow' (slow 1.0)" in log


@pytest.mark.parametrize(("act", "number"), list(zip(ACTS, cycle(SIGNALS))))
def test_a_signal_ends_the_server(number: int, act: str, packages: Packages) -> None:
    with started(packages, "import_time", act, HOUR) as process:
        assert process.stderr is not None
        while "it hangs" not in (line := process.stderr.readline()):
            assert line, "the server has ended"
        process.send_signal(number)
        assert process.wait(60) == -number


def test_one_signal_ends_a_server_whose_event_loop_hangs(tmp_path: Path) -> None:
    flags = ("--no-engine-process", "--shutdown-timeout=0")
    program = ("tests.check.impatient_toy_serve", *flags)
    with running_server(tmp_path, program=program) as server:
        body = {"prompt": "x", "user": "loop"}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=1)
        server.process.terminate()
        assert server.process.wait(60) == 128 + signal.SIGTERM
