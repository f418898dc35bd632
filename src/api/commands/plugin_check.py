"""`tokenmill plugins check NAME`: runs the conformance suites in a separate pytest process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

from ...core.errors import ConfigError
from ...core.host.plugins_file import FILE_NAME

SUITE = "tokenmill.testing.suite"
_PYTEST_USAGE_ERROR = 4


def run_check(
    name: str,
    plugins_file: str | None = None,
    time_limit: float | None = None,
    *,
    verbose: bool = False,
) -> int:
    """Run the conformance suite of every kind that an installed plugin provides.

    The output goes to the terminal. Returns 0 if all checks passed, 1 if one failed, 2 if there is
    no such plugin. Options come from `plugins_file`, or from ./plugins.toml if it exists. A test
    that takes longer than `time_limit` seconds fails. `verbose` prints a line for each test.
    Raises ConfigError without pytest.
    """
    if find_spec("pytest") is None:
        raise ConfigError(
            "`tokenmill plugins check` runs pytest: install it with `pip install pytest`"
        )
    # The user's pytest settings and other pytest plugins must not change the outcome.
    command = [sys.executable, "-P", "-m", "pytest", "--no-header", "--tb=native"]
    command += ["-c", os.devnull, "-p", "no:cacheprovider", "-p", "tokenmill.testing.pytest_plugin"]
    command += ["--pyargs", SUITE, f"--plugin={name}"]
    if verbose:
        command.append("-v")
    if plugins_file is None and os.path.isfile(FILE_NAME):
        plugins_file = FILE_NAME
    if plugins_file is not None:
        command.append(f"--plugins-file={os.path.abspath(plugins_file)}")
    if time_limit is not None:
        command.append(f"--time-limit={time_limit}")
    environment = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    status = subprocess.run(command, env=environment, check=False).returncode
    return 2 if status == _PYTEST_USAGE_ERROR else status
