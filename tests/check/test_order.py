"""The longest modules of `make check` start first."""

from __future__ import annotations

from typing import Any

from .order import LONGEST, TESTS, longest_first


class Item:
    """The attribute of a test that the order depends on."""

    def __init__(self, name: str) -> None:
        self.path = TESTS / name


def test_the_longest_start_first_and_the_others_keep_their_order() -> None:
    names = ["test_readme.py", LONGEST[1], "core/test_kinds.py", LONGEST[0], LONGEST[1]]
    items: list[Any] = [Item(name) for name in names]
    longest_first(items)
    found = [item.path.relative_to(TESTS).as_posix() for item in items]
    assert found == [LONGEST[0], LONGEST[1], LONGEST[1], "test_readme.py", "core/test_kinds.py"]


def test_the_modules_that_start_early_exist() -> None:
    assert [name for name in LONGEST if not (TESTS / name).is_file()] == []
