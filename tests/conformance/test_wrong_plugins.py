"""The net is tested, too: every check of the kit catches a plugin that does just that wrong.

That a wrong plugin passes all other checks is a test of `make check`, because it takes ten times
as long.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator, Mapping
from inspect import Parameter, signature
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from tokenmill import testing
from tokenmill.testing.conformance.suites import checks_of

from .wrong import Wrong, load_all
from .wrong.packages import install_wrong_packages

WRONG = load_all()
OVERLAPPING = "two-plans"
"""In the names of cases with two plans at once, which `make soak` adds: a sixth of the time."""
each_wrong_plugin = pytest.mark.parametrize("wrong", WRONG, ids=str)


@pytest.fixture(scope="module")
def wrong_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    install_wrong_packages(folder)
    return folder


@pytest.fixture(autouse=True)
def installed(wrong_packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(wrong_packages))


@each_wrong_plugin
def test_a_wrong_plugin_fails_the_check_for_what_it_does_wrong(
    wrong: Wrong, request: pytest.FixtureRequest
) -> None:
    """Only until the first case fails."""
    with pytest.raises(wrong.raises):
        for case in cases(wrong.check):
            run(wrong, wrong.check, case, request)


@each_wrong_plugin
@pytest.mark.check
@pytest.mark.depends_on("src/core", "src/plugins", "src/backends", "pyproject.toml")
def test_a_wrong_plugin_fails_exactly_the_check_for_what_it_does_wrong(
    wrong: Wrong, request: pytest.FixtureRequest
) -> None:
    assert failed(wrong, request) == [wrong.check.__name__]


@each_wrong_plugin
@pytest.mark.soak
def test_with_two_plans_at_once_it_fails_the_same_check(
    wrong: Wrong, request: pytest.FixtureRequest
) -> None:
    assert failed(wrong, request, with_overlap=True) == [wrong.check.__name__]


def test_every_check_has_a_plugin_that_fails_it() -> None:
    caught = {wrong.check for wrong in WRONG}
    for name in testing.__all__:
        if name.endswith("Conformance"):
            checks = judging_checks(sys.modules[getattr(testing, name).__module__])
            assert checks and not set(checks) - caught, name


def judging_checks(module: ModuleType) -> list[FunctionType]:
    """The checks of a suite, without those that only report and cannot fail."""
    return [check for check in checks_of(module) if not check.__name__.endswith("_is_reported")]


def failed(
    wrong: Wrong, request: pytest.FixtureRequest, *, with_overlap: bool = False
) -> list[str]:
    """The checks of its suite that a wrong plugin fails."""

    def is_caught(check: FunctionType, case: Mapping[str, object]) -> bool:
        try:
            run(wrong, check, case, request)
        except Exception:
            return True
        return False

    return [
        check.__name__
        for check in judging_checks(sys.modules[wrong.check.__module__])
        if any(is_caught(check, case) for case in cases(check, with_overlap=with_overlap))
    ]


def cases(check: FunctionType, *, with_overlap: bool = False) -> Iterator[Mapping[str, object]]:
    """The arguments for which pytest would call a check."""
    marks = getattr(check, "pytestmark", ())
    for values in itertools.product(*(mark.args[1] for mark in marks)):
        if with_overlap or not any(OVERLAPPING in str(value) for value in values):
            yield dict(zip([mark.args[0] for mark in marks], values, strict=True))


def run(
    wrong: Wrong, check: FunctionType, case: Mapping[str, object], request: pytest.FixtureRequest
) -> None:
    """Call a check with a wrong plugin. A check that skips itself finds nothing."""
    _, *others = signature(check).parameters.values()
    given = {"report": [], **wrong.arguments, **case}
    arguments = {
        one.name: given[one.name] if one.name in given else request.getfixturevalue(one.name)
        for one in others
        if one.name in given or one.default is Parameter.empty
    }
    with contextlib.suppress(pytest.skip.Exception):
        check(wrong.make(), **arguments)
