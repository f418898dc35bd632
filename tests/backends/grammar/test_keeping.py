"""What is kept of grammars has limits: a number, and a size."""

from __future__ import annotations

from tokenmill.backends.grammar import grammars
from tokenmill.backends.grammar.llguidance.backend import LLGuidance
from tokenmill.core.requests.grammar import MAX_GRAMMAR, Grammar

from .toy import SPEC


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
