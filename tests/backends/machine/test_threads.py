"""How many threads compute, and on which CPUs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tokenmill.backends.machine import cgroups, threads
from tokenmill.backends.machine.threads import (
    count_usable_cpus,
    divide_cores,
    place_threads,
    use_share_of_cores,
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Four cores of two CPUs each, without a limit."""
    siblings = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    monkeypatch.setattr(threads, "_siblings", siblings.__getitem__)
    monkeypatch.setattr(threads, "_memory_node", lambda cpu: 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: None, raising=False)
    monkeypatch.setattr(threads, "_cpu_quota", lambda: math.inf)
    return monkeypatch


def test_one_thread_per_physical_core_each_on_its_own(machine: pytest.MonkeyPatch) -> None:
    placement = place_threads()
    assert (placement.num_threads, placement.cpus) == (4, (0, 1, 2, 3))


def test_the_process_s_affinity_is_respected(machine: pytest.MonkeyPatch) -> None:
    machine.setattr("os.sched_getaffinity", lambda _: {1, 5, 6}, raising=False)
    placement = place_threads()
    assert (placement.num_threads, placement.cpus) == (2, (1, 6))


def test_a_container_s_quota_limits_and_leaves_threads_free(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(threads, "_cpu_quota", lambda: 2.5)
    placement = place_threads()
    assert (placement.num_threads, placement.cpus) == (3, None)


def test_shares_are_of_one_memory_controller_if_sockets_are_numbered_in_turns(
    machine: pytest.MonkeyPatch,
) -> None:
    machine.setattr(threads, "_memory_node", lambda cpu: cpu % 2)
    shares = divide_cores(2)
    assert shares is not None
    assert [share.cpus for share in shares] == [(0, 2, 4, 6), (1, 3, 5, 7)]


def test_fewer_threads_keep_to_the_first_cores_and_more_wander(machine: pytest.MonkeyPatch) -> None:
    assert place_threads(2).cpus == (0, 1)
    assert place_threads(6).cpus is None


def test_usable_cpus_are_those_of_the_affinity_up_to_the_quota(
    machine: pytest.MonkeyPatch,
) -> None:
    assert count_usable_cpus() == 8
    machine.setattr("os.sched_getaffinity", lambda _: {1, 5})
    assert count_usable_cpus() == 2
    machine.setattr(threads, "_cpu_quota", lambda: 0.5)
    assert count_usable_cpus() == 1


@pytest.fixture
def cgroup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of control groups; the process is in two of them."""
    root, own = tmp_path / "cgroup", tmp_path / "own"
    (root / "service" / "tokenmill").mkdir(parents=True)
    own.write_text("0::/service/tokenmill\n3:cpu,cpuacct:/service\n7:memory:/other\n")
    monkeypatch.setattr(cgroups, "_ROOT", root)
    monkeypatch.setattr(cgroups, "_OWN_GROUPS", own)
    return root


def test_without_cgroups_there_is_no_quota(cgroup: Path) -> None:
    assert threads._cpu_quota() == math.inf


@pytest.mark.parametrize(("limit", "quota"), [("max 100000\n", math.inf), ("150000 100000\n", 1.5)])
def test_the_quota_is_read_from_version_2(cgroup: Path, limit: str, quota: float) -> None:
    (cgroup / "cpu.max").write_text(limit)
    assert threads._cpu_quota() == quota


def test_the_quota_of_a_service_s_own_group_counts(cgroup: Path) -> None:
    (cgroup / "service" / "cpu.max").write_text("300000 100000")
    assert threads._cpu_quota() == 3
    (cgroup / "service" / "tokenmill" / "cpu.max").write_text("200000 100000")
    assert threads._cpu_quota() == 2


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize("group", ["", "service"])
@pytest.mark.parametrize(("limit", "quota"), [("-1\n", math.inf), ("250000\n", 2.5)])
def test_the_quota_is_read_from_version_1(
    cgroup: Path, folder: str, group: str, limit: str, quota: float
) -> None:
    own = cgroup / folder / group
    own.mkdir(parents=True)
    (own / "cpu.cfs_quota_us").write_text(limit)
    (own / "cpu.cfs_period_us").write_text("100000\n")
    assert threads._cpu_quota() == quota


def test_a_rank_keeps_to_its_share_if_there_is_a_core_for_each(machine: pytest.MonkeyPatch) -> None:
    kept: list[set[int]] = []
    machine.setattr("os.sched_setaffinity", lambda _, cpus: kept.append(set(cpus)), raising=False)
    use_share_of_cores(1, 2)
    assert kept == [{2, 3, 6, 7}]
    use_share_of_cores(0, 5)
    assert len(kept) == 1
