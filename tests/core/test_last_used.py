"""Values that were used last are kept, within a number and a size."""

from __future__ import annotations

from tokenmill.core.last_used import LastUsed


def test_the_values_used_last_stay_within_number_and_size() -> None:
    kept = LastUsed[str, str](max_count=3, max_size=10)
    for key, size in {"a": 1, "b": 2, "c": 3}.items():
        kept.put(key, key, size)
    assert kept.get("a") == "a"
    kept.put("d", "d", 1)
    assert [kept.get(key) for key in "abcd"] == ["a", None, "c", "d"]
    kept.put("e", "e", 8)
    assert [kept.get(key) for key in "acde"] == [None, None, "d", "e"]


def test_a_value_that_is_put_again_counts_once() -> None:
    kept = LastUsed[str, int](max_count=3, max_size=10)
    for size in (6, 5, 4):
        kept.put("a", size, size)
    kept.put("b", 6, 6)
    assert (kept.get("a"), kept.get("b")) == (4, 6)
