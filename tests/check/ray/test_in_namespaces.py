"""Runs the tests of `inside` with a Ray cluster of two machines, which are network namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.check.parts import need

from . import inside, machines

FOLDER = Path(inside.__file__).parent
PROBE = "ip link add name one type veth peer name two && mount -t tmpfs probe /mnt"


@pytest.mark.timeout(1800)  # it is many tests, each with its own timeout
def test_ray_executor_on_two_machines_without_any_other_network() -> None:
    need("ip", "iproute2")
    probe = subprocess.run([*machines.UNSHARE, "sh", "-c", PROBE], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"this system has no namespaces for its users: {probe.stderr.strip()}")
    tests = [sys.executable, "-m", "pytest", "-m", "check", "-n", "0", "-rs", str(FOLDER)]
    command = [*machines.UNSHARE, sys.executable, "-m", machines.__name__, *tests]
    environment = os.environ | {inside.SWITCH: "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
