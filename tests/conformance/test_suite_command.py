"""`tokenmill plugins check NAME` and the pytest run behind it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokenmill.api.commands.plugin_check import run_check
from tokenmill.core.errors import ConfigError

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
    assert run_check("fcfs") == 0
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
    assert said in capfd.readouterr().out


def test_an_unknown_name_is_a_usage_error_with_a_near_one(capfd: Capture) -> None:
    assert run_check("fcsf") == 2
    assert "no plugin named 'fcsf'" in capfd.readouterr().err


def test_a_plugins_file_that_cannot_be_read_is_a_usage_error(
    tmp_path: Path, capfd: Capture
) -> None:
    assert run_check("fcfs", str(tmp_path / "missing.toml")) == 2
    assert "cannot read the plugins file" in capfd.readouterr().err


def test_without_pytest_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.api.commands.plugin_check.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install pytest"):
        run_check("fcfs")


def test_the_suites_alone_ask_for_a_plugin(tmp_path: Path) -> None:
    printed = run_pytest(tmp_path, "--pyargs", "tokenmill.testing.suite")
    assert "say which plugin to check: --plugin NAME" in printed


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
