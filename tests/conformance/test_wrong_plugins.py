"""The net is tested, too: every check of the kit catches a plugin that does just that wrong.

That a wrong plugin passes all other checks is a test of `make check`, because it takes ten times
as long.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tokenmill import testing

from .wrong import (
    admissions,
    attentions,
    draft_lengths,
    executors,
    grammars,
    linears,
    models,
    observers,
    orders,
    packages,
    parsers,
    preemptions,
    processors,
    routers,
    routes,
    schedulers,
    speculators,
    transforms,
    weight_formats,
)

ROOT = Path(__file__).resolve().parents[2]
RUNS = (
    (schedulers,),
    (preemptions, parsers, routers, routes, transforms),
    (attentions, linears, models, weight_formats, processors),
    (orders, packages, observers, admissions, draft_lengths, grammars, executors),
    (speculators,),
)
"""What runs in one process, each of about the same length."""
WRONG = {
    name: cls
    for module in itertools.chain(*RUNS)
    for name, cls in vars(module).items()
    if name.startswith("Test")
}
FIGURES = "reported"
"""In the names of the checks that cannot fail."""
OVERLAPPING = "two-plans"
"""In the names of cases with two plans at once, which `make soak` adds: a sixth of the time."""
OUTER_PLUGINS = ("faulthandler", "unraisableexception", "threadexception")
"""What a pytest run within a pytest run leaves to the outer one."""
OPTIONS = ("-q", "--tb=no", "--noconftest", "-c", os.devnull, "-p", "no:cacheprovider")


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plugin_fails_the_check_for_what_it_does_wrong(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this check runs, in this process, and only until its first case fails."""
    wrong = WRONG[name]
    if issubclass(wrong, packages.WrongPackage):
        packages.install_wrong_packages(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    check = f"{sys.modules[wrong.__module__].__file__}::{name}::{wrong.fails}"
    options = ["-x", "-s", f"-k=not {OVERLAPPING}", f"--rootdir={ROOT}"]
    options += [f"--basetemp={tmp_path / 'made'}", *(f"-pno:{one}" for one in OUTER_PLUGINS)]
    assert pytest.main([*OPTIONS, *options, check]) == pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[str]]:
    folder = tmp_path_factory.mktemp("wrong")
    return run_all_suites(folder, f"not {FIGURES} and not {OVERLAPPING}")


def run_all_suites(folder: Path, chosen: str) -> Mapping[str, set[str]]:
    """The tests that failed, by class: all wrong plugins, in several processes."""
    packages.install_wrong_packages(folder)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(partial(run_suites, folder, chosen), RUNS))
    return {name: failures for result in results for name, failures in result.items()}


def run_suites(folder: Path, chosen: str, modules: Sequence[ModuleType]) -> Mapping[str, set[str]]:
    """Which of the chosen tests of which class fail, where a folder's packages are installed."""
    name, files = modules[0].__name__, [str(module.__file__) for module in modules]
    report = folder / f"{name}.xml"
    options = ["-p", "tokenmill.testing.pytest_plugin", "-k", chosen]
    options += [f"--rootdir={ROOT}", f"--junitxml={report}", f"--basetemp={folder / name}"]
    environment = {
        "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS, *options, *files],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | environment,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, set[str]] = defaultdict(set)
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            name = case.attrib["classname"].rpartition(".")[2]
            found[name].add(case.attrib["name"].partition("[")[0])
    return found


@pytest.mark.check
@pytest.mark.depends_on("src/core", "src/plugins", "src/backends", "pyproject.toml")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plugin_fails_exactly_the_check_for_what_it_does_wrong(
    name: str, failed: Mapping[str, set[str]]
) -> None:
    assert failed.get(name) == {WRONG[name].fails}


@pytest.mark.soak
def test_with_two_plans_at_once_they_fail_the_same_checks(tmp_path: Path) -> None:
    assert run_all_suites(tmp_path, f"not {FIGURES}") == {n: {c.fails} for n, c in WRONG.items()}


def test_every_check_has_a_plugin_that_fails_it() -> None:
    names = [name for name in testing.__all__ if name.endswith("Conformance")]
    for suite in (getattr(testing, name) for name in names):
        checks = {name for name in dir(suite) if name.startswith("test_")}
        judging = {name for name in checks if not name.endswith("_is_reported")}
        caught = {cls.fails for cls in WRONG.values() if issubclass(cls, suite)}
        assert caught == judging, suite.__name__
