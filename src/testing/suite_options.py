"""pytest hooks of a run of tokenmill.testing.suite: which plugin, and which tests it needs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ..core.errors import TokenmillError
from ..core.host.plugins_file import read_settings
from .conformance.installed import LoadedPlugin, Subject, find_plugin
from .time_limit import DEFAULT_SECONDS, TimeLimit

_NAME = pytest.StashKey[str]()
_SUBJECTS = pytest.StashKey[Sequence[Subject]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--plugin` and `--plugins-file`."""
    group = parser.getgroup("tokenmill", "tokenmill's conformance suites")
    group.addoption("--plugin", metavar="NAME", help="the installed plugin to check")
    group.addoption(
        "--plugins-file",
        metavar="FILE",
        help="a plugins.toml with the options to check it with; default: those that it declares",
    )
    group.addoption(
        "--time-limit",
        type=float,
        default=DEFAULT_SECONDS,
        metavar="SECONDS",
        help="a test that takes longer fails (default: %(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find and load the plugin. One that does not load is left to the suite for packages."""
    config.pluginmanager.register(TimeLimit(config.getoption("--time-limit")))
    name: str | None = config.getoption("--plugin")
    if name is None:
        raise pytest.UsageError("say which plugin to check: --plugin NAME")
    plugins_file: str | None = config.getoption("--plugins-file")
    try:
        config.stash[_NAME] = find_plugin(name).source.plugin
        if plugins_file is not None:
            read_settings(plugins_file)
    except TokenmillError as error:
        raise pytest.UsageError(str(error)) from None
    try:
        plugin = LoadedPlugin(name, plugins_file)
        config.stash[_SUBJECTS] = plugin.subjects()
    except TokenmillError:
        config.stash[_SUBJECTS] = ()


def pytest_report_header(config: pytest.Config) -> str:
    """What is being checked."""
    return f"tokenmill: {find_plugin(config.stash[_NAME]).source}"


def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Item] | None:
    """Leave out the suites of kinds that the plugin does not have."""
    kind = getattr(obj, "kind", None) if isinstance(obj, type) else None
    if kind is None or any(s.kind == kind for s in collector.config.stash[_SUBJECTS]):
        return None
    return []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a suite for everything of its kind that the plugin brings."""
    if "subject" in metafunc.fixturenames:
        kind = getattr(metafunc.cls, "kind", None)
        subjects = [s for s in metafunc.config.stash[_SUBJECTS] if s.kind == kind]
        metafunc.parametrize("subject", subjects, ids=[s.name for s in subjects])


@pytest.fixture
def plugin_name(pytestconfig: pytest.Config) -> str:
    return pytestconfig.stash[_NAME]
