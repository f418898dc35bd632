"""`tokenmill doctor` finds what is wrong with a machine, and says what to do."""

from __future__ import annotations

import json
import resource
import socket
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import pytest

from tokenmill.api.cli import main
from tokenmill.doctor import devices, files, memory, processor, software, tokenmill_itself
from tokenmill.doctor.examination import CHECKS, examine
from tokenmill.doctor.finding import Finding


def test_each_part_is_found_once_and_each_trouble_has_advice() -> None:
    findings = list(examine())
    assert len({one.name for one in findings}) == len(findings) == len(CHECKS)
    for one in findings:
        assert one.found
        assert one.state in ("ok", "note") or one.advice, one


def test_a_check_that_fails_hides_no_other() -> None:
    def examine_something_odd() -> Finding:
        raise OSError("no such thing")

    odd, python = examine((examine_something_odd, software.examine_python))
    assert (odd.name, odd.state) == ("something odd", "warning")
    assert "no such thing" in odd.found
    assert python.name == "python"


def test_the_command_prints_json_and_fails_only_if_no_server_starts(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--json"]) == 0
    assert {one["state"] for one in json.loads(capsys.readouterr().out)} <= {
        "ok", "note", "warning"
    }  # fmt: skip
    Path("plugins.toml").write_text("[scheduler\n")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "problem plugins" in out
    assert "plugins.toml" in out
    assert "1 problem, " in out


def test_a_slow_or_unknown_instruction_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_CPU_ISA", "portable")
    best = processor.instruction_sets.supported_sets()[0]
    found = processor.examine_processor()
    assert found.state == "warning"
    assert best == "portable" or f"kernels for {best} are faster" in found.cost
    monkeypatch.setenv("TOKENMILL_CPU_ISA", "sse9")
    found = processor.examine_processor()
    assert found.state == "problem"
    assert "sse9" in found.found


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processor, "PREBUILT", tmp_path / "none")
    monkeypatch.setenv("CXX", "/no/compiler")
    found = processor.examine_compiler()
    assert found.state == "warning"
    assert "/no/compiler" in found.found
    assert "install g++" in found.advice
    monkeypatch.setattr(processor, "PREBUILT", tmp_path)
    assert processor.examine_compiler().state == "ok"


def test_other_programs_on_the_same_cores_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert "load" not in processor.examine_threads().found
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert "the load is 1000.0" in processor.examine_threads().found


def test_little_memory_and_a_limit_of_addresses_are_warnings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "usable_memory", lambda: 1 << 28)
    found = memory.examine_memory()
    assert found.state == "warning"
    assert found.found.startswith("0.2 of ")
    monkeypatch.setattr(memory, "usable_memory", lambda: 1 << 40)
    assert memory.examine_memory().state == "ok"
    monkeypatch.setattr(resource, "getrlimit", lambda _: (5 << 30, 5 << 30))
    assert "5.0 GiB (ulimit -v)" in memory.examine_memory().found


@pytest.mark.parametrize(
    ("text", "state"),
    [("always [madvise] never", "ok"), ("always madvise [never]", "warning"), (None, "note")],
)
def test_huge_pages(
    text: str | None, state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "enabled"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(memory, "_HUGE_PAGES", file)
    assert memory.examine_huge_pages().state == state


def test_a_cache_that_cannot_hold_kernels_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new/folder"))
    assert files.examine_cache().state == "ok"
    monkeypatch.setattr(files, "BUILD_BYTES", 1 << 60)
    found = files.examine_cache()
    assert found.state == "warning"
    assert "a build needs" in found.found
    assert "XDG_CACHE_HOME" in found.advice


def test_few_open_files_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    found = files.examine_open_files()
    assert found.state == "warning"
    assert "64" in found.found


def test_a_port_in_use_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(files, "_PORT", port)
        found = files.examine_port()
    assert found.state == "note"
    assert str(port) in found.found
    assert files.examine_port().state == "ok"


def test_a_machine_without_a_temporary_folder_has_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where TMPDIR is wrong, Python takes another folder, and tokenmill runs."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    assert files.examine_temporary_files().state == "ok"
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    found = files.examine_temporary_files()
    assert found.state == "problem"
    assert "TMPDIR" in found.advice


def test_missing_and_old_packages_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ["anyio>=4.8", "no-such-package[x]<3,>=1", "pluggy>=999.1", 'other>=1; extra == "dev"']
    monkeypatch.setattr(metadata, "requires", lambda name: needed)
    found = software.examine_packages()
    assert found.state == "problem"
    have = metadata.version("pluggy")
    assert found.found == f"no-such-package is missing; pluggy {have} is older than 999.1"


def test_versions_are_compared_by_numbers() -> None:
    assert software.numbers("2.13.0+cpu") == (2, 13, 0)
    assert software.numbers("2.9") < software.numbers("2.11")
    assert [one.name for one in software.needed_packages("chat")] == ["prompt-toolkit"]
    assert "torch" in {one.name for one in software.needed_packages("")}


def test_a_torch_that_cannot_be_imported_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert devices.examine_torch().state == "problem"


def test_a_gpu_that_torch_cannot_use_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = devices.examine_gpus()
    assert found.state == "warning"
    assert "the CPU" in found.cost


def test_what_changes_the_defaults_is_listed(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in tokenmill_itself._VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert tokenmill_itself.examine_settings().state == "ok"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    Path("plugins.toml").touch()
    assert tokenmill_itself.examine_settings().found == "OMP_NUM_THREADS=3, ./plugins.toml"
