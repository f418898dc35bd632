"""Runs the tests of `inside` with a Ray cluster of two machines, which are network namespaces."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.check.parts import need

from . import inside, machines

FOLDER = Path(inside.__file__).parent
PROBE = "ip link add name one type veth peer name two && mount -t tmpfs probe /mnt"


@pytest.mark.timeout(3600)  # it is many tests, each with its own timeout
@pytest.mark.parametrize("tier", ["check", pytest.param("soak", marks=pytest.mark.soak)])
def test_ray_executor_on_two_machines_without_any_other_network(tier: str) -> None:
    if importlib.util.find_spec("ray") is None:  # `make soak` does not install it
        pytest.skip("ray is missing: run `make check` first, which installs it")
    need("ip", "iproute2")
    probe = subprocess.run([*machines.UNSHARE, "sh", "-c", PROBE], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"this system has no namespaces for its users: {probe.stderr.strip()}")
    tests = [sys.executable, "-m", "pytest", "-m", tier, "-n", "0", "-rs", str(FOLDER)]
    command = [*machines.UNSHARE, sys.executable, "-m", machines.__name__, *tests]
    environment = os.environ | {inside.SWITCH: "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
