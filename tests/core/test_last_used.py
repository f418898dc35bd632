"""What is kept of grammars has limits: a number, and a size."""

from __future__ import annotations

from tokenmill.backends.grammar import grammars
from tokenmill.backends.grammar.llguidance.backend import LLGuidance
from tokenmill.core.last_used import LastUsed
from tokenmill.core.requests.grammar import MAX_GRAMMAR, Grammar

from .toy import SPEC


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


def test_large_compiled_grammars_are_not_kept_by_their_number_alone() -> None:
    engine = grammars.Grammars(lambda: LLGuidance(SPEC))
    large = [
        Grammar.json_schema({"const": f"{i}".ljust(MAX_GRAMMAR - 100)})
        for i in range(grammars.MAX_COMPILED_CHARACTERS // MAX_GRAMMAR + 2)
    ]
    for grammar in large:
        engine.compile(grammar)
    assert large[-1] in engine and large[0] not in engine
    assert sum(grammar in engine for grammar in large) < len(large)
