"""pytest hooks of a run of tokenmill.testing.suite: select the plugin, and the tests it needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ..core.errors import TokenmillError
from ..core.host.plugins_file import read_settings
from ..core.kinds import KINDS
from .conformance.installed import LoadedPlugin, Subject, find_plugin
from .suite import add_tests
from .time_limit import DEFAULT_SECONDS, TimeLimit

_NAME = pytest.StashKey[str]()
_SUBJECTS = pytest.StashKey[Sequence[Subject]]()
_CALLERS = ("_pytest.", "pluggy.", TimeLimit.__module__, "tokenmill.testing.pytest_plugin")
"""Beginnings of the names of modules that only call the tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tokenmill", "tokenmill's conformance suites")
    group.addoption("--plugin", metavar="NAME", help="the installed plugin to check")
    group.addoption(
        "--plugins-file",
        metavar="FILE",
        help="a plugins.toml with the plugin's options; default: the options that it declares",
    )
    group.addoption(
        "--time-limit",
        type=float,
        default=DEFAULT_SECONDS,
        metavar="SECONDS",
        help="a test that takes longer fails (default: %(default)s)",
    )
    group.addoption(
        "--progress-file", type=Path, metavar="FILE", help="a file that names the current test"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find and load the plugin. If it does not load, only the suite for packages runs."""
    config.pluginmanager.register(TimeLimit(config.getoption("--time-limit")))
    if progress_file := config.getoption("--progress-file"):
        config.pluginmanager.register(ProgressFile(progress_file))
    name: str | None = config.getoption("--plugin")
    if name is None:
        raise _usage_error("name the plugin to check: --plugin NAME")
    plugins_file: str | None = config.getoption("--plugins-file")
    try:
        config.stash[_NAME] = find_plugin(name).source.plugin
        if plugins_file is not None:
            read_settings(plugins_file)
    except TokenmillError as error:
        raise _usage_error(str(error)) from None
    try:
        plugin = LoadedPlugin(name, plugins_file)
        config.stash[_SUBJECTS] = plugin.subjects()
    except TokenmillError:
        config.stash[_SUBJECTS] = ()
    offered = {subject.kind for subject in config.stash[_SUBJECTS]}
    try:
        add_tests(kind for name, kind in KINDS.items() if name in offered)
    except ImportError as error:
        raise _usage_error(f"a suite for this plugin needs more libraries: {error}") from None


def _usage_error(text: str) -> pytest.UsageError:
    """Print the text as tokenmill's commands do. pytest would print it after "ERROR:"."""
    print(f"error: {text}", file=sys.stderr)
    return pytest.UsageError()


def pytest_report_header(config: pytest.Config) -> str:
    """The plugin under test, for pytest's header."""
    return f"tokenmill: {find_plugin(config.stash[_NAME]).source}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a suite once for each object of its kind that the plugin offers."""
    if "subject" in metafunc.fixturenames:
        kind = getattr(metafunc.cls, "kind", None)
        subjects = [s for s in metafunc.config.stash[_SUBJECTS] if s.kind == kind]
        metafunc.parametrize("subject", subjects, ids=[s.name for s in subjects])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> None:
    """Let tracebacks begin in the test: pytest's style "native" would show its own 20 frames."""
    if call.excinfo is not None:
        entries = call.excinfo.traceback
        names = [str(entry.frame.f_globals.get("__name__")) for entry in entries]
        own = [i for i, name in enumerate(names) if not name.startswith(_CALLERS)]
        call.excinfo.traceback = entries[own[0] if own else 0 :]


@pytest.fixture
def plugin_name(pytestconfig: pytest.Config) -> str:
    return pytestconfig.stash[_NAME]


ENDED = "ended"
"""The content of the file after a run that came to its end."""


class ProgressFile:
    """A pytest plugin: the parent process can name the test if this process dies. The file has the
    id of the current test; "" before the first one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._path.write_text(nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._path.write_text(ENDED)
