"""How a machine is divided among replicas."""

from __future__ import annotations

import pytest

from tokenmill.backends.machine import places, threads
from tokenmill.backends.machine.memory import SHARE
from tokenmill.backends.machine.places import GPUS, THREADS, place_ranks, place_replicas
from tokenmill.core.errors import ConfigError
from tokenmill.core.processes.place import WHOLE_MACHINE, Place

from .test_threads import machine

__all__ = ["machine"]


@pytest.fixture(autouse=True)
def plain(machine: pytest.MonkeyPatch) -> None:
    """Four cores of two CPUs each, 1200 bytes of memory, no GPU, and no wishes of the user."""
    machine.setattr(places, "usable_memory", lambda: 1200)
    machine.delenv(THREADS, raising=False)
    machine.setenv(GPUS, "")


def test_a_single_engine_has_the_whole_machine() -> None:
    assert place_replicas(1, "auto") == (WHOLE_MACHINE,)


def test_replicas_share_no_core() -> None:
    first, second = place_replicas(2, "cpu")
    assert (first.cpus, second.cpus) == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert first.environment == second.environment == {THREADS: "2", SHARE: "600"}


def test_no_core_is_left_over() -> None:
    found = [len(place.cpus) // 2 for place in place_replicas(3, "cpu")]
    assert sorted(found) == [1, 1, 2]


def test_the_user_s_number_of_threads_is_a_maximum_for_each(machine: pytest.MonkeyPatch) -> None:
    for given, expected in (("1", "1"), ("8", "2"), ("two", "2")):
        machine.setenv(THREADS, given)
        assert [place.environment[THREADS] for place in place_replicas(2, "cpu")] == [expected] * 2


def test_a_quota_is_divided_and_leaves_threads_free(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(threads, "_cpu_quota", lambda: 3.0)
    assert place_replicas(2, "cpu") == (Place(environment={THREADS: "1", SHARE: "600"}),) * 2
    with pytest.raises(ConfigError, match="may use 3 CPU cores"):
        place_replicas(4, "cpu")


def test_more_replicas_than_cores_are_refused() -> None:
    with pytest.raises(ConfigError, match="--data-parallel-size is 5, but this process may use 4"):
        place_replicas(5, "cpu")


def test_each_replica_has_a_gpu_of_its_own(machine: pytest.MonkeyPatch) -> None:
    machine.setenv(GPUS, "3, GPU-7f,-1,4")
    assert [place.environment[GPUS] for place in place_replicas(2, "auto")] == ["3", "GPU-7f"]
    assert SHARE not in place_replicas(2, "auto")[0].environment
    with pytest.raises(
        ConfigError, match=r"is 3, but the number of visible GPUs is 2: .*--device cpu"
    ):
        place_replicas(3, "cuda")
    assert all(GPUS not in place.environment for place in place_replicas(3, "cpu"))


def test_each_rank_of_a_replica_has_a_gpu_of_its_own(machine: pytest.MonkeyPatch) -> None:
    machine.setenv(GPUS, "4,5,6,7,8")
    replicas = place_replicas(2, "cuda", num_ranks=2)
    assert [place.environment[GPUS] for place in replicas] == ["4,5", "6,7"]
    with pytest.raises(ConfigError, match=r"is 3 with 2 ranks each, but .* visible GPUs is 5"):
        place_replicas(3, "cuda", num_ranks=2)
    assert [place.environment for place in place_ranks(["6", "7"])] == [{GPUS: "6"}, {GPUS: "7"}]


def test_more_gpus_than_cores_are_served_without_shares(machine: pytest.MonkeyPatch) -> None:
    machine.setenv(GPUS, "0,1,2")
    machine.setattr(threads, "_cpu_quota", lambda: 2.0)
    assert [place.cpus for place in place_replicas(3, "auto")] == [()] * 3


def test_without_wishes_all_gpus_of_the_machine_are_found(machine: pytest.MonkeyPatch) -> None:
    machine.delenv(GPUS)
    machine.setattr(places, "_DEVICE_FILES", "null")
    with pytest.raises(ConfigError, match="visible GPUs is 1"):
        place_replicas(2, "auto")
