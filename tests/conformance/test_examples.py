"""The third-party packages of examples/, installed by pip, work by name and pass the kit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenmill.api.commands.plugins.check import run_check
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.events import Stopping
from tokenmill.core.host.listing import describe_plugin, discover_plugins
from tokenmill.core.host.plugin_host import PluginHost

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FOLDERS = {
    "shortest-job-first": EXAMPLES / "plugin-shortest-job-first",
    "audit-log": EXAMPLES / "plugin-audit-log",
    "cost-aware": EXAMPLES / "plugin-cost-aware-preemption",
    "sdpa": EXAMPLES / "plugin-sdpa-attention",
    "fair-queueing": EXAMPLES / "plugin-fair-queueing",
    "grey-tiles": EXAMPLES / "plugin-grey-tiles",
    "granite": EXAMPLES / "plugin-granite-reasoning",
    "redact": EXAMPLES / "plugin-redact",
    "shared-limits": EXAMPLES / "plugin-shared-limits",
    "suffix-automaton": EXAMPLES / "plugin-suffix-automaton",
}
SETTINGS = """
[plugins]
enable = ["audit-log", "shortest-job-first"]

[scheduler]
use = "shortest-job-first"
ageing = 50

[scheduling_policy]
use = "fair-queueing"
weights = { acme = 3.0 }

[preemption_mode]
use = "cost-aware"
swap_overhead = 10.0

[speculative_method]
use = "suffix-automaton"
min_match = 2

[observer.audit-log]
path = "requests.jsonl"
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed all of them."""
    pytest.importorskip("pip", reason="an environment without pip")
    target = tmp_path_factory.mktemp("site")
    options = [
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--target",
        str(target),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *map(str, FOLDERS.values())],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(autouse=True)
def installed(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """They are on sys.path, here and in child processes, and the working directory is empty."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.chdir(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("tokenmill_")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", FOLDERS)
def test_an_installed_example_is_listed_but_not_active(name: str) -> None:
    info = {info.name: info for info in discover_plugins()}[name]
    assert (info.state, info.version) == ("available", "1.0")
    assert info.distribution == f"tokenmill-{FOLDERS[name].name.removeprefix('plugin-')}"


@pytest.mark.parametrize("name", FOLDERS)
def test_it_describes_its_options(name: str) -> None:
    description = describe_plugin(name)
    [provider] = description.providers
    assert description.doc and provider.doc
    assert all(option.help and option.default != "required" for option in provider.options)


def test_they_are_chosen_and_configured_in_plugins_toml(tmp_path: Path) -> None:
    (tmp_path / "plugins.toml").write_text(SETTINGS)
    host = PluginHost.load(EngineConfig())
    host.emit(Stopping())
    assert host.names["scheduler"] == "shortest-job-first"
    assert host.names["scheduling_policy"] == "fair-queueing"
    assert host.names["preemption_mode"] == "cost-aware"
    assert host.names["speculative_method"] == "suffix-automaton"
    assert host.uses_swap
    [line] = (tmp_path / "requests.jsonl").read_text().splitlines()
    assert json.loads(line)["event"] == "stopping"


def test_a_policy_is_also_chosen_by_a_flag_alone() -> None:
    host = PluginHost.load(EngineConfig(scheduler="shortest_job_first"))
    assert host.names["scheduler"] == "shortest-job-first"


def test_an_attention_backend_is_also_chosen_by_a_flag_alone() -> None:
    assert (
        PluginHost.load(EngineConfig(attention_backend="sdpa")).names["attention_backend"] == "sdpa"
    )


def test_it_passes_the_kit_without_a_line_of_code() -> None:
    """One of them here; the examples' own tests contain the suites."""
    assert run_check("audit-log") == 0


@pytest.mark.check
def test_their_own_tests_pass() -> None:
    """All in one process: each of its own would import torch again.

    In `make check`, because they contain whole suites: 30 CPU seconds.
    """
    options = ["-q", "-c", os.devnull, "-p", "no:cacheprovider", f"--rootdir={EXAMPLES}"]
    folders = [folder / "tests" for folder in FOLDERS.values()]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-rA", *map(str, folders)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    for folder in folders:
        place = re.escape(f"{folder.relative_to(EXAMPLES)}/")
        assert re.search(rf"^PASSED \S*{place}", done.stdout, re.MULTILINE), folder
