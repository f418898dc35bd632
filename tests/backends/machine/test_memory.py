"""The memory that a process may still use, on pretended machines and in pretended containers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tokenmill.backends.machine import cgroups, memory

MIB = 1 << 20


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of control groups, on a machine with 1000 MiB available."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000 * MIB))
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "_OWN_GROUPS", tmp_path / "own")
    return tmp_path / "cgroup"


def belong_to(root: Path, line: str) -> None:
    (root.parent / "own").write_text(f"{line}\n")


def make_group(folder: Path, limit: str, used: int, cached: int) -> None:
    """A group of version 2; half of the cached files were used lately. Sizes are in MiB."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used * MIB}\n")
    half = cached * MIB // 2
    (folder / "memory.stat").write_text(
        f"anon 5\ninactive_file {half}\nactive_file {half}\nshmem 7\n"
    )


def test_without_control_groups_the_machine_s_memory_counts(root: Path) -> None:
    assert memory.usable_memory() == 1000 * MIB


def test_a_container_s_limit_counts_without_its_cached_files(root: Path) -> None:
    belong_to(root, "0::/")
    make_group(root, str(500 * MIB), used=300, cached=100)
    assert memory.usable_memory() == 300 * MIB


def test_a_container_that_does_not_see_its_group_s_path_has_it_at_the_root(root: Path) -> None:
    belong_to(root, "0::/system.slice/docker-1.scope")
    make_group(root, str(500 * MIB), used=300, cached=0)
    assert memory.usable_memory() == 200 * MIB


def test_the_tightest_of_all_groups_around_the_process_counts(root: Path) -> None:
    belong_to(root, "0::/outer/inner")
    make_group(root / "outer" / "inner", str(900 * MIB), used=100, cached=0)
    make_group(root / "outer", str(400 * MIB), used=150, cached=0)
    assert memory.usable_memory() == 250 * MIB


def test_a_group_without_a_limit_does_not_count(root: Path) -> None:
    belong_to(root, "0::/")
    make_group(root, "max", used=300, cached=0)
    assert memory.usable_memory() == 1000 * MIB


def test_a_limit_above_the_machine_s_memory_does_not_count(root: Path) -> None:
    belong_to(root, "0::/")
    make_group(root, str(1 << 62), used=300, cached=0)
    assert memory.usable_memory() == 1000 * MIB


def test_a_group_over_its_limit_leaves_nothing(root: Path) -> None:
    belong_to(root, "0::/")
    make_group(root, str(100 * MIB), used=300, cached=0)
    assert memory.usable_memory() == 0


def test_limits_of_version_1_are_read(root: Path) -> None:
    belong_to(root, "4:cpu,cpuacct:/a\n7:memory:/a\n0::/")
    folder = root / "memory" / "a"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(f"{400 * MIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{300 * MIB}\n")
    (folder / "memory.stat").write_text(f"cache 1\ntotal_inactive_file {50 * MIB}\n")
    assert memory.usable_memory() == 150 * MIB


def test_on_this_machine_some_memory_is_usable() -> None:
    assert 0 < memory.usable_memory() <= psutil.virtual_memory().total


def test_a_replica_loads_into_its_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "usable_memory", lambda: 300)
    assert memory.loadable_memory() == 300
    monkeypatch.setenv(memory.SHARE, "200")
    assert memory.loadable_memory() == 200
    monkeypatch.setenv(memory.SHARE, "500")  # others have loaded their models since then
    assert memory.loadable_memory() == 300
