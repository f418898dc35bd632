"""`tokenmill plugins check NAME` and the pytest run behind it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from tokenmill.api.commands.plugins.check import run_check
from tokenmill.core.contract.events import Planned
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.providers.speculation import Draft, ProposalBatch
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.calling import guard
from tokenmill.testing.conformance import hosting
from tokenmill.testing.conformance.engine import checks
from tokenmill.testing.conformance.engine.workload import AMPLE
from tokenmill.testing.conformance.installed import sandboxed

from .wrong.packages import install_wrong_packages

Capture = pytest.CaptureFixture[str]


def run_pytest(folder: Path, *arguments: str, plugin: bool = True) -> str:
    """What pytest prints in a folder; the plugin is loaded as by its entry point."""
    loaded = ["-p", "tokenmill.testing.pytest_plugin"] if plugin else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *loaded, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    return done.stdout + done.stderr


def test_a_sound_plugin_passes_and_the_times_are_reported(capfd: Capture) -> None:
    assert run_check("fcfs", verbose=True) == 0
    printed = capfd.readouterr().out
    assert "TestSchedulingPolicy::test_nobody_starves[fcfs] PASSED" in printed
    assert "TestPackage" in printed and "TestScheduler:" not in printed
    assert "plan() with 2048 requests" in printed


@pytest.mark.parametrize(
    "name, said", [("wrong-hook", "'on_step'?"), ("wrong-import", "nobody_has")]
)
def test_a_broken_plugin_fails_with_the_reason(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    """The command works although the engine would refuse to start."""
    install_wrong_packages(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert run_check(name) == 1
    printed = capfd.readouterr().out
    assert said in printed and "_pytest/runner.py" not in printed


def test_an_unknown_name_is_a_usage_error_with_a_near_one(capfd: Capture) -> None:
    assert run_check("fcsf") == 2
    printed = capfd.readouterr()
    assert printed.err.startswith("error: no plugin named 'fcsf'")
    assert "ERROR" not in printed.err + printed.out


def test_the_plugins_file_of_the_folder_is_used_and_passing_tests_are_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "plugins.toml"
    file.write_text("[observer.stats-log]\ninterval = 'soon'\n")
    assert run_check("stats-log") != 0
    assert "interval" in "".join(capfd.readouterr())
    file.unlink()
    assert run_check("stats-log") == 0
    printed = capfd.readouterr().out
    assert "PASSED" not in printed and " passed" in printed


def test_a_plugins_file_that_cannot_be_read_is_a_usage_error(
    tmp_path: Path, capfd: Capture
) -> None:
    assert run_check("fcfs", str(tmp_path / "missing.toml")) == 2
    assert "cannot read the plugins file" in capfd.readouterr().err


def test_without_pytest_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.api.commands.plugins.check.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install pytest"):
        run_check("fcfs")


def test_the_suites_alone_ask_for_a_plugin(tmp_path: Path) -> None:
    printed = run_pytest(tmp_path, "--pyargs", "tokenmill.testing.suite")
    assert "name the plugin to check: --plugin NAME" in printed


def test_other_pytest_runs_get_no_options_and_no_output(tmp_path: Path) -> None:
    (tmp_path / "test_of_a_user.py").write_text("def test_mine():\n    assert True\n")
    with_it = run_pytest(tmp_path, "-W", "error")
    assert "1 passed" in with_it and "tokenmill" not in with_it
    assert run_pytest(tmp_path, "--help") == run_pytest(tmp_path, "--help", plugin=False)


def test_loading_the_pytest_plugin_imports_neither_the_kit_nor_anything_heavy() -> None:
    heavy = "torch starlette prometheus_client structlog tokenmill.testing.conformance"
    program = (
        "import sys, tokenmill.testing.pytest_plugin\n"
        f"print([name for name in {heavy.split()} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == "[]"


AUDIT = """
import time
from dataclasses import dataclass, field
from tokenmill.plugin import hookimpl, kinds

TOKENMILL_API = (1, 1)
CALLS_THAT_HANG = [True] * {hanging}

@dataclass(frozen=True)
class Options:
    path: str = field(default="{path}", metadata={{"help": "file"}})

class Audit:
    def __init__(self, context, options):
        self.file = open(options.path, "a")
        self.seen = []

    @hookimpl
    def on_admitted(self, event):
        self.seen.append(event)
        self.file.write("admitted")
        self.file.flush()

    @hookimpl
    def on_stopping(self):
        self.file.close()

    @hookimpl
    def on_preempted(self, event):
        while CALLS_THAT_HANG and CALLS_THAT_HANG.pop():
            time.sleep(3600)

@hookimpl
def register(registry):
    registry.offer(kinds.OBSERVER, "acme-audit", Audit, options=Options)
"""


def install_audit(folder: Path, path: Path, *, hanging: int = 0) -> None:
    """`hanging` is the number of calls of one hook that hang, before others return."""
    (folder / "acme_audit.py").write_text(AUDIT.format(path=path, hanging=hanging))
    info = folder / "acme_audit-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-audit\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tokenmill.plugins]\nacme-audit = acme_audit\n")


def test_an_observer_s_own_file_is_left_alone_and_its_growing_memory_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    real = tmp_path / "logs" / "audit.jsonl"
    real.parent.mkdir()
    real.write_text("of yesterday\n")
    install_audit(tmp_path, real)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert run_check("acme-audit") == 0
    printed = capfd.readouterr().out
    assert "tokenmill: findings" in printed and "memory grows: " in printed
    settings = tmp_path / "mine.toml"
    settings.write_text(f'[observer.acme-audit]\npath = "{real}"\n')
    assert run_check("acme-audit", str(settings)) == 0
    assert real.read_text() == "of yesterday\n"
    assert [path.name for path in real.parent.iterdir()] == ["audit.jsonl"]


def test_a_plugin_that_hangs_fails_its_test_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    install_audit(tmp_path, tmp_path / "audit.jsonl", hanging=1)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert run_check("acme-audit", time_limit=10, verbose=True) == 1
    printed = capfd.readouterr().out
    assert printed.count("[acme-audit] FAILED") == 1
    assert "took longer than 10 s" in printed
    begins = re.findall(r"^Traceback .*\n  File (.*)$", printed, re.MULTILINE)
    assert begins and all("tokenmill/testing/conformance/" in line for line in begins), begins
    assert "acme_audit.py" in printed
    assert "test_the_entry_point_loads PASSED" in printed


@pytest.mark.check  # it waits for 20 seconds
def test_the_second_test_that_hangs_ends_the_run_and_each_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    install_audit(tmp_path, tmp_path / "audit.jsonl", hanging=100)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert run_check("acme-audit", time_limit=10) == 1
    printed = capfd.readouterr()
    assert "2 tests took longer than 10 s" in printed.out
    assert printed.err.count("a test took longer than 10 s") == 2
    assert printed.err.count("acme_audit.py") == 2


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("os._exit(0)", "(ended with status 0)"),
        # The same path, for a whole run of the suite each.
        pytest.param("os.kill(os.getpid(), 11)", "(killed by SIGSEGV)", marks=pytest.mark.check),
        pytest.param(
            "(_ for _ in ()).throw(KeyboardInterrupt)",
            "raised KeyboardInterrupt",
            marks=pytest.mark.check,
        ),
    ],
)
def test_a_plugin_that_ends_the_program_has_failed(
    ending: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    install_audit(tmp_path, tmp_path / "audit.jsonl")
    module = tmp_path / "acme_audit.py"
    source = module.read_text().replace("import time\n", "import os, time\n")
    module.write_text(source.replace("self.seen.append(event)", ending))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert run_check("acme-audit") == 1
    printed = capfd.readouterr().out
    assert said in printed and "TestObserver" in printed


def test_slow_hooks_under_test_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    class Watcher:
        @hookimpl
        def on_planned(self) -> None: ...

    hosting.take_slow_hooks()
    monkeypatch.setattr(guard, "SLOW_SECONDS", -1.0)
    host = hosting.load_host("observer", Watcher())
    host.emit(Planned(step_id=1, num_requests=2, num_tokens=3))
    host.schedule(cast(Any, None))  # the engine's own scheduler: slow, and not under test
    assert hosting.take_slow_hooks() == ["'on_planned' took more than 50 ms in 1 of 1 calls"]
    assert hosting.take_slow_hooks() == []


def test_drafts_are_proposed_on_another_thread_than_steps_are_planned_on() -> None:
    threads: dict[str, set[int]] = {"propose": set(), "schedule": set()}

    class Method:
        @hookimpl
        def propose(self, batch: ProposalBatch) -> list[Draft]:
            threads["propose"].add(threading.get_ident())
            return [Draft() for _ in batch.requests]

    class Watcher:
        @hookimpl(wrapper=True)
        def schedule(self) -> Generator[None, object, object]:
            threads["schedule"].add(threading.get_ident())
            return (yield)

    checks.serve("speculative_method", Method, AMPLE, Watcher())
    assert threads["schedule"] == {threading.get_ident()}
    assert threads["propose"] and not threads["propose"] & threads["schedule"]


@pytest.mark.parametrize(
    ("value", "moved"),
    [
        ("audit.jsonl", False),
        ("/var/log/audit.jsonl", True),
        ("../audit.jsonl", True),
        ("~/audit.jsonl", True),
        (Path("audit.jsonl"), True),
        ("http://collector/v1", False),
        (7, False),
    ],
)
def test_options_that_are_paths_point_into_the_folder_of_the_check(
    value: object, moved: bool, tmp_path: Path
) -> None:
    @dataclass
    class Options:
        log_file: object = value

    for given in ({}, {"log-file": value}):
        found = {k.replace("-", "_"): v for k, v in sandboxed(Options, given, tmp_path).items()}
        target = found.get("log_file", value)
        assert (target != value) is moved
        assert not moved or Path(str(target)).resolve().is_relative_to(tmp_path)
