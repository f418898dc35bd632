"""The conformance suites for an installed plugin. Run them without writing code:

pytest --pyargs tokenmill.testing.suite --plugin NAME
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from .. import testing
from ..core.kinds import Kind
from .conformance.installed import Subject
from .conformance.package import PackageConformance


class TestPackage(PackageConformance):
    """The tests that apply to every plugin."""

    @pytest.fixture
    def plugins_file(self, pytestconfig: pytest.Config) -> str | None:
        file: str | None = pytestconfig.getoption("--plugins-file")
        return file


def add_tests(kinds: Iterable[Kind[Any]]) -> None:
    """Add the suites of these kinds. Suites for other kinds may need libraries that are missing."""
    globals().update({tests.__name__: tests for tests in map(_tests_of, kinds)})


def _tests_of(kind: Kind[Any]) -> type:
    """The suite of a kind, which tests every provider that the plugin offers."""

    @pytest.fixture(name=kind.name)
    def provider(self: object, subject: Subject) -> object:
        if kind.is_slot and not kind.has_auto:
            return subject.make  # a policy: each of its tests makes one, or several
        made = subject.make()
        if made is None:
            pytest.skip(f"the factory of {subject.kind} {subject.name!r} returned None")
        return made

    suite = getattr(testing, kind.suite.partition(":")[2])
    name = f"Test{suite.__name__.removesuffix('Conformance')}"
    return type(name, (suite,), {"kind": kind.name, "provider": provider, "__module__": __name__})
