"""`tokenmill plugins check NAME`: runs the conformance suites in a separate pytest process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from ....core.errors import ConfigError
from ....core.host.plugins_file import FILE_NAME
from ....core.processes.child import describe_status

SUITE = "tokenmill.testing.suite"
_PYTEST_USAGE_ERROR = 4
_ENDED = "ended"  # ENDED of testing.suite_options, which imports pytest


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
    that takes longer than `time_limit` seconds fails. `verbose` prints a line for each test. A
    plugin that ends the process of the tests has failed, whatever the status of that process.
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
    with TemporaryDirectory() as folder:
        progress = Path(folder, "progress")
        progress.touch()
        command.append(f"--progress-file={progress}")
        status = subprocess.run(command, env=environment, check=False).returncode
        current = progress.read_text()
    if status == _PYTEST_USAGE_ERROR:
        return 2
    if current == _ENDED:
        return int(status != 0)
    where = f"in {current.partition('::')[2]}" if current else "before the first test"
    how = describe_status(status)
    print(f"\nthe process of the tests stopped {where} ({how}): did the plugin end it?")
    return 1
