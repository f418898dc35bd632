"""Callers with the same key share one piece of work, which ends with the last of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from tokenmill.core.errors import OverloadedError
from tokenmill.core.shared_work import SharedWork


class Gate:
    """Work that waits until it may go on."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.opened = threading.Event()

    def work(self, name: str) -> Callable[[], str]:
        return lambda: self._do(name)

    def _do(self, name: str) -> str:
        self.opened.wait(30)
        self.done.append(name)
        return name


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def sharing() -> Iterator[SharedWork[str, str]]:
    sharing = SharedWork[str, str]("test", max_count=3, max_size=10, too_many="too many")
    yield sharing
    sharing.close()


def test_callers_with_the_same_key_share_the_work_and_the_next_one_begins_anew(
    sharing: SharedWork[str, str], gate: Gate
) -> None:
    async def main() -> None:
        calls = [asyncio.create_task(sharing.run(key, gate.work(key))) for key in "aba"]
        await asyncio.sleep(0)
        gate.opened.set()
        assert await asyncio.gather(*calls) == ["a", "b", "a"]
        assert gate.done == ["a", "b"]
        assert await sharing.run("a", gate.work("a")) == "a"
        assert gate.done == ["a", "b", "a"]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_caller_that_leaves_takes_the_work_only_from_itself(
    sharing: SharedWork[str, str], gate: Gate
) -> None:
    async def main() -> None:
        staying, leaving, alone = (
            asyncio.create_task(sharing.run(key, gate.work(key))) for key in ("a", "a", "b")
        )
        await asyncio.sleep(0)
        leaving.cancel()
        alone.cancel()
        await asyncio.sleep(0)
        gate.opened.set()
        assert await staying == "a"
        await sharing.run("c", gate.work("c"))
        assert gate.done == ["a", "c"]

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize(
    ("sizes", "refused"),
    [([1, 1, 1, 1], [3]), ([6, 4, 1], [2]), ([99], []), ([99, 0], [1]), ([0, 0, 99], [2])],
)
def test_work_over_the_limits_is_refused_but_not_one_large_piece(
    sharing: SharedWork[str, str], gate: Gate, sizes: list[int], refused: list[int]
) -> None:
    async def main() -> None:
        calls = [
            asyncio.create_task(sharing.run(str(at), gate.work(str(at)), size))
            for at, size in enumerate(sizes)
        ]
        await asyncio.sleep(0)
        gate.opened.set()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [at for at, one in enumerate(found) if isinstance(one, OverloadedError)] == refused
        assert gate.done == [str(at) for at in range(len(sizes)) if at not in refused]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_all_callers_get_the_error_of_the_work(sharing: SharedWork[str, str]) -> None:
    def fail() -> str:
        raise ValueError("broken")

    async def main() -> list[str | BaseException]:
        calls = (sharing.run("a", fail) for _ in range(2))
        return await asyncio.gather(*calls, return_exceptions=True)

    assert list(map(repr, asyncio.run(main()))) == ["ValueError('broken')"] * 2
