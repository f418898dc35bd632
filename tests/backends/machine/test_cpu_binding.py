"""The CPUs of ranks are those that --cpu-bind names."""

from __future__ import annotations

import pytest

from tokenmill.backends.machine.cpu_binding import bind, check_binding
from tokenmill.core.errors import ConfigError


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """A machine with CPUs 0 to 7; the sets that a process was limited to."""
    sets = [set(range(8))]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: sets[-1], raising=False)
    monkeypatch.setattr(
        "os.sched_setaffinity", lambda _, cpus: sets.append(set(cpus)), raising=False
    )
    return sets


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3|4-7", [{0, 1, 2, 3}, {4, 5, 6, 7}]),
        ("0,2-4 | 5", [{0, 2, 3, 4}, {5}]),
        ("7", [{7}]),
    ],
)
def test_each_rank_is_limited_to_its_set(
    bound: list[set[int]], text: str, cpus: list[set[int]]
) -> None:
    check_binding(text, len(cpus))
    for rank, own in enumerate(cpus):
        assert 1 <= bind(text, rank, len(cpus), 99) <= len(own), "cores, one thread for each"
        assert bound.pop() == own


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-x|1", r"'0-x\|1' is neither auto nor a set of CPUs per rank"),
        ("0|", "neither auto nor"),
        ("", "neither auto nor"),
        ("3-1|0", r"--cpu-bind names the empty range 3-1"),
        ("0-3", "names 1 sets of CPUs, but the number of ranks is 2"),
        ("0-3|3", "names CPU 3 for two ranks"),
        ("0-3|4-9", r"names CPU 8, but this process may only use 0,1,2,3,4,5,6,7"),
    ],
)
def test_what_is_not_one_set_of_usable_cpus_per_rank_is_refused(
    bound: list[set[int]], text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_binding(text, 2)
    assert len(bound) == 1


def test_auto_divides_the_cores(bound: list[set[int]]) -> None:
    check_binding("auto", 3)
    assert 1 <= bind("auto", 0, 2, 99) <= 4, "a thread for each core of the share"
    assert bind("auto", 0, 2, 1) == 1
