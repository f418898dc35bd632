"""The pytest plugin of the conformance kit: prints measured times, and adds the suites' options.

Every pytest run loads it where tokenmill is installed. So it imports little, and adds options only
to a run of the suites themselves: `pytest --pyargs tokenmill.testing.suite --plugin NAME`.
"""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

SUITE = "tokenmill.testing.suite"
_PREFIX = "tokenmill: "  # REPORT_PREFIX of the suites, which are not imported here
_FINDING_PREFIX = "tokenmill finding: "
_HOSTING = "tokenmill.testing.conformance.hosting"

pytest.register_assert_rewrite("tokenmill.testing.conformance")


def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Add `--plugin` and `--plugins-file` if the suites are run by name."""
    if any(argument.partition("::")[0] == SUITE for argument in args):
        early_config.pluginmanager.import_plugin("tokenmill.testing.suite_options")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Note the hooks that were slow in this test, if a suite ran a plugin in it."""
    try:
        return (yield)
    finally:
        hosting = sys.modules.get(_HOSTING)
        slow = hosting.take_slow_hooks() if hosting else ()
        item.user_properties += [(_FINDING_PREFIX + finding, "") for finding in slow]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the times and findings that the suites reported."""
    times = _reported(terminalreporter, _PREFIX)
    if times:
        terminalreporter.section("tokenmill: times, which have no limit")
    for test, name, value in times:
        terminalreporter.line(f"{value!s:>10}  {name}  ({test.partition('::')[0]})")
    findings = _reported(terminalreporter, _FINDING_PREFIX)
    if findings:
        terminalreporter.section("tokenmill: findings")
    for test, finding, _ in findings:
        terminalreporter.line(f"{finding}  ({test})")


def _reported(
    terminalreporter: pytest.TerminalReporter, prefix: str
) -> list[tuple[str, str, object]]:
    return sorted(
        (report.nodeid.partition("::")[2], name.removeprefix(prefix), value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name.startswith(prefix)
    )
