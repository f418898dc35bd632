"""The tests of parsers and of HTTP find bugs that somebody could write.

All of them are planted in `make soak`, each with a run of the tests that must find it, and one of
each kind in `make check`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from . import http, kernels, parsers
from .kernels import KernelBug
from .planting import Bug, params, run_tests

BUGS: dict[str, Bug] = {**parsers.BUGS, **http.BUGS}
FILES: dict[str, Bug | KernelBug] = {**BUGS, **kernels.BUGS}


@pytest.mark.parametrize("name", FILES)
def test_a_bug_fits_its_file(name: str) -> None:
    """Else a change of the file would take it off the list without a word."""
    source = FILES[name].changed()
    if FILES[name].file.endswith(".py"):
        compile(source, name, "exec")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [*params(parsers.BUGS), *params(http.BUGS)])
def test_a_bug_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    is_found, output = run_tests(BUGS[name])
    record_property("found_by", BUGS[name].test)
    assert is_found, output[-4000:]


@pytest.mark.check
def test_a_bug_that_changes_nothing_is_not_found() -> None:
    bug = parsers.BUGS["all calls have the same number"]
    harmless = Bug(file=bug.file, old=bug.old, new=bug.old, test=bug.test)
    is_found, output = run_tests(harmless, "-k", "calls_are_found")
    assert not is_found and " passed" in output
