"""Tests a native library before it is used for the first time on a CPU.

A child process runs the self-test, which compares the library's results with plain loops. Code that
this CPU cannot run ends that process and not this one. The cache records the libraries that passed,
by library and CPU. TOKENMILL_CPU_SELF_TEST=0 skips the test and starts no process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
from pathlib import Path

from ....core.interfaces import Progress
from ....core.log import get_logger
from ...machine.compiling import BuildError, cache_folder
from .build import build_self_test
from .instruction_sets import cpu_identity

VARIABLE = "TOKENMILL_CPU_SELF_TEST"

log = get_logger("model")

_TIMEOUT_S = 120.0
"""Maximum time of the test, which takes less than a second. A machine may be 100 times slower."""


def failure_of(library: Path, progress: Progress) -> str | None:
    """The first failure that the self-test finds in a library on this CPU, or None.

    Also None if the library has passed before or the test is switched off. If the test cannot be
    built or started, that is logged and the result is None: it says nothing about the library.
    """
    if os.environ.get(VARIABLE) == "0":
        return None
    try:
        program = build_self_test(progress)
        marker = cache_folder() / f"cpu-passed-{_key(library, program)}"
        if marker.exists():
            return None
        progress("testing the CPU kernels", 0.0)
        failure = _run(program, library)
    except (BuildError, OSError) as error:
        log.warning("cpu_self_test_not_run", reason=str(error))
        return None
    if failure is None:
        _remember(marker)
    progress("testing the CPU kernels", 1.0)
    return failure


def _key(library: Path, program: Path) -> str:
    digest = hashlib.sha256(cpu_identity().encode())
    for path in (library, program):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _run(program: Path, library: Path) -> str | None:
    try:
        done = subprocess.run(
            [program, library],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"the self-test did not end within {_TIMEOUT_S:.0f} seconds"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"the self-test died of {signal.Signals(-done.returncode).name}"
    # The program prints to stdout. If the system cannot start it, for example because its libc is
    # too old, the reason is on stderr.
    lines = (done.stdout or done.stderr).decode(errors="replace").splitlines()
    return lines[0] if lines else f"the self-test ended with status {done.returncode}"


def _remember(marker: Path) -> None:
    """Record that a library passed. If that is not possible, the test runs at each start."""
    with contextlib.suppress(OSError):
        marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        marker.touch()
