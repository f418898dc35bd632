"""Grammar refuses what no grammar backend could use, before anything is compiled."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tokenmill.core.errors import InvalidRequestError
from tokenmill.core.requests.grammar import MAX_CHOICES, MAX_GRAMMAR, Grammar, GrammarKind
from tokenmill.core.requests.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kind": "ebnf", "text": "x"}, "unknown kind 'ebnf'"),
        ({"kind": "regex"}, "needs a text"),
        ({"kind": "regex", "text": b"a"}, "got bytes"),
        ({"kind": "regex", "text": "a" * (MAX_GRAMMAR + 1)}, "at most 131072"),
        ({"kind": "json_object", "text": "{}"}, "has no text"),
        ({"kind": "json_schema", "text": "{"}, "not valid JSON"),
        ({"kind": "json_schema", "text": "[]"}, "must be a JSON schema"),
        ({"kind": "json_schema", "text": "[" * 100_000}, "nested too deeply"),
        ({"kind": "choice", "text": "[]"}, "1 to 1024 texts"),
        ({"kind": "choice", "text": '["a", ""]'}, "empty"),
        ({"kind": "choice", "text": "[" + "1," * MAX_CHOICES + "1]"}, "1 to 1024 texts"),
        ({"kind": "structural_tag", "text": "[]"}, "must be a JSON object"),
        ({"kind": "regex", "text": "a", "whitespace": " "}, "regex has no whitespace"),
        ({"kind": "json_object", "whitespace": " " * (MAX_GRAMMAR + 1)}, "at most 131072"),
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused_with_the_reason(
    fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as raised:
        Grammar(**fields)
    assert raised.value.param == "grammar"


def test_a_schema_may_be_given_as_python_values() -> None:
    grammar = Grammar.json_schema({"type": "integer"}, is_strict=False)
    assert grammar == Grammar(
        kind=GrammarKind.JSON_SCHEMA, text='{"type":"integer"}', is_strict=False
    )


def test_a_schema_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="cannot be written as JSON"):
        Grammar.json_schema({"const": object()})


def test_parameters_with_a_grammar_survive_a_msgpack_round_trip() -> None:
    params = SamplingParams(grammar=Grammar.choice(["yes", "no"]))
    packed = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(packed, type=SamplingParams) == params


def test_parameters_refuse_a_grammar_of_another_type() -> None:
    with pytest.raises(InvalidRequestError, match="must be a Grammar, got dict") as raised:
        SamplingParams(grammar={"type": "integer"})  # type: ignore[arg-type]
    assert raised.value.param == "grammar"
