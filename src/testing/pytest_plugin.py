"""pytest's side of the conformance kit: prints what the suites measured, and runs the suites of an
installed plugin.

Loaded by every pytest run where tokenmill is installed, so it imports little, and adds options only
to a run of the suites themselves: `pytest --pyargs tokenmill.testing.suite --plugin NAME`.
"""

from __future__ import annotations

import pytest

SUITE = "tokenmill.testing.suite"
_PREFIX = "tokenmill: "  # REPORT_PREFIX of the suites, which are not imported here

pytest.register_assert_rewrite("tokenmill.testing.conformance")


def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Add `--plugin` and `--plugins-file` when the suites are what is to be run."""
    if any(argument.partition("::")[0] == SUITE for argument in args):
        early_config.pluginmanager.import_plugin("tokenmill.testing.suite_options")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the times that the suites reported."""
    reports = [
        (report.nodeid.partition("::")[2], name.removeprefix(_PREFIX), value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name.startswith(_PREFIX)
    ]
    if reports:
        terminalreporter.section("tokenmill: measured, not judged")
    for test, name, value in sorted(reports):
        terminalreporter.line(f"{value!s:>10}  {name}  ({test.partition('::')[0]})")
