"""Collections that plugins can read and not change."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.core.requests.read_only_collections import ReadOnlyDict, ReadOnlyList

READS = {"copy", "count", "fromkeys", "get", "index", "items", "keys", "values"}


@pytest.mark.parametrize("made", [ReadOnlyDict({1: 2}), ReadOnlyList([1, 2])], ids=["dict", "list"])
def test_every_method_that_writes_is_refused(made: Any) -> None:
    before = type(made)(made)
    plain = type(made).__base__
    writes = {"__setitem__", "__delitem__", "__iadd__", "__imul__", "__ior__"} & set(dir(plain))
    writes |= {name for name in dir(plain) if not name.startswith("_")} - READS
    assert len(writes) > 6
    for name in writes:
        with pytest.raises(TypeError, match=f"read-only; change a copy, {plain.__name__}"):
            getattr(made, name)(1, 2)
    assert made == before


def test_the_owner_of_a_list_appends_with_the_methods_of_list() -> None:
    tokens = ReadOnlyList((1, 2))
    list.append(tokens, 3)
    list.extend(tokens, [4])
    assert tokens == [1, 2, 3, 4] and tokens[1:3] == [2, 3]
