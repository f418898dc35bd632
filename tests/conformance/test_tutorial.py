"""docs/write-a-plugin.md is true: its files are the example's, its other snippets pass the kit."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tokenmill.api.cli import make_parser
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.registry import Registry
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.testing import (
    AdmissionConformance,
    AttentionConformance,
    DraftLengthConformance,
    ObserverConformance,
    SchedulerConformance,
    SchedulingPolicyConformance,
    SpeculatorConformance,
    conformance,
)
from tokenmill.testing.conformance.engine.speculating import SHAPES as DRAFTING_SHAPES
from tokenmill.testing.conformance.engine.workload import SHAPES
from tokenmill.testing.conformance.installed import LoadedPlugin, Subject

from ..core.plugin_packages import Packages

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/write-a-plugin.md").read_text()
EXAMPLE = ROOT / "examples/plugin-shortest-job-first"
FILES = dict(re.findall(r"^`([^`\n]+)`:\n\n```\w+\n(.*?)```$", TEXT, re.MULTILINE | re.DOTALL))
MODULES = [
    code
    for code in re.findall(r"^```python\n(.*?)```$", TEXT, re.MULTILINE | re.DOTALL)
    if code not in FILES.values()
]
SETTINGS = re.search(r"```toml\n(\[scheduler\].*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"^tokenmill .*$", TEXT, re.MULTILINE)


def subjects(packages: Packages, code: str) -> dict[str, Subject]:
    """What a snippet brings, by kind, as an installed plugin."""
    packages.install("acme-snippet", code, header="")
    return {subject.kind: subject for subject in LoadedPlugin("acme-snippet").subjects()}


def test_every_file_is_that_of_the_example_and_none_is_left_out() -> None:
    written = {"README.md", *FILES}  # for the README a line is enough
    there = {str(path.relative_to(EXAMPLE)) for path in EXAMPLE.rglob("*.*") if path.is_file()}
    assert {name for name in there if "__pycache__" not in name} == written
    for name, text in FILES.items():
        assert (EXAMPLE / name).read_text() == text, name


def test_the_other_order_passes_the_kit(packages: Packages) -> None:
    subject = subjects(packages, MODULES[0])["scheduling_policy"]
    suite = SchedulingPolicyConformance()
    suite.test_nobody_starves(subject.make)
    suite.test_keys_are_tuples_of_numbers(subject.make)
    suite.test_the_same_request_has_the_same_key(subject.make)


def test_the_draft_length_passes_the_kit(packages: Packages) -> None:
    subject = subjects(packages, MODULES[1])["draft_length"]
    suite = DraftLengthConformance()
    suite.test_nothing_is_kept_of_ended_requests(subject.make)
    for shape in DRAFTING_SHAPES:
        suite.test_an_engine_takes_its_answers(subject.make, shape)


def test_the_bare_hooks_pass_the_kit(packages: Packages) -> None:
    found = subjects(packages, MODULES[2])
    AdmissionConformance().test_it_never_raises(found["admission"].make)
    AdmissionConformance().test_refusals_say_why_and_for_how_long(found["admission"].make)
    ObserverConformance().test_it_survives_every_event(found["observer"].make)


def test_the_wrapper_passes_the_kit(packages: Packages) -> None:
    subject = subjects(packages, MODULES[3])["scheduler"]
    suite = SchedulerConformance()
    suite.test_nobody_starves(subject.make)
    for shape in SHAPES:
        suite.test_it_decides_every_step_itself(subject.make, shape)


def test_the_attention_backend_s_tests_run_where_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples/plugin-sdpa-attention"))
    found: dict[str, Any] = {}
    exec(MODULES[4], found)
    suite = found["TestOnTheCPU"]
    assert issubclass(suite, AttentionConformance)
    assert suite.device is not AttentionConformance.device


@pytest.mark.parametrize("name", ["phrases", "similar", "stock-phrases"])
def test_the_speculative_methods_pass_the_kit(name: str, packages: Packages) -> None:
    [code] = [code for code in MODULES if f'speculative_method("{name}"' in code]
    subject = subjects(packages, code)["speculative_method"]
    suite = SpeculatorConformance()
    suite.test_every_request_gets_one_draft(subject.make)
    suite.test_no_draft_is_longer_than_asked(subject.make)
    suite.test_each_request_gets_a_draft_of_its_own(subject.make)
    suite.test_nothing_is_kept_of_ended_requests(subject.make)
    if name == "similar":
        suite.test_hidden_states_are_not_kept(subject.make)


def test_the_options_are_understood(packages: Packages) -> None:
    assert SETTINGS is not None
    package = FILES["tokenmill_shortest_job_first/__init__.py"]
    scheduler = FILES["tokenmill_shortest_job_first/scheduler.py"]
    (packages.folder / "scheduler_of_tutorial.py").write_text(scheduler)
    code = package.replace("from .scheduler", "from scheduler_of_tutorial")
    packages.install("shortest-job-first", code, header="")
    packages.write_settings(SETTINGS[1])
    assert PluginHost.load(EngineConfig()).names["scheduler"] == "shortest-job-first"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_exists(command: str) -> None:
    make_parser().parse_args(shlex.split(command)[1:])


def test_the_table_names_every_kind_and_every_suite() -> None:
    for suite in conformance.__all__:
        assert f"`{suite}`" in TEXT
    kinds: list[Any] = re.findall(r"`registry\.(\w+)`", TEXT)
    assert kinds and all(callable(getattr(Registry, kind)) for kind in kinds)
