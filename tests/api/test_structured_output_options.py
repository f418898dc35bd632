"""vLLM's options of grammars for JSON: each works, or is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tokenmill.api.http.errors import APIError
from tokenmill.api.openai.reading.bodies import CompletionBody
from tokenmill.api.openai.reading.requests import grammar_fields
from tokenmill.core.requests.grammar import Grammar

SCHEMA = {
    "properties": {"properties": {"properties": {"a": {}}}, "free": {"additionalProperties": {}}},
    "items": [{"patternProperties": {"^x": True}}],
    "enum": [{"properties": {}}],
}


def read(outputs: dict[str, Any] | None = None, **fields: Any) -> Grammar | None:
    body = {"prompt": "x", "structured_outputs": outputs, **fields}
    return grammar_fields(msgspec.convert(body, CompletionBody)).read()


def test_neutral_values_change_nothing() -> None:
    neutral = {
        "whitespace_pattern": None,
        "disable_any_whitespace": False,
        "disable_additional_properties": False,
        "disable_fallback": False,
    }
    assert read({"regex": "a+"} | neutral) == read({"regex": "a+"})
    assert read({"json": {}, "disable_fallback": True}) == read({"json": {}})


def test_whitespace_is_part_of_the_grammar() -> None:
    found = [
        read({"json_object": True, "whitespace_pattern": " ?"}),
        read({"json": {}, "disable_any_whitespace": True}),
        read(guided_json={}, guided_whitespace_pattern="\n*"),
    ]
    assert [grammar.whitespace for grammar in found if grammar] == [" ?", "", "\n*"]


def test_only_objects_that_list_properties_are_closed() -> None:
    grammar = read({"json": SCHEMA, "disable_additional_properties": True})
    assert grammar is not None
    assert msgspec.json.decode(grammar.text) == {
        "properties": {
            "properties": {"properties": {"a": {}}, "additionalProperties": False},
            "free": {"additionalProperties": {}},
        },
        "items": [{"patternProperties": {"^x": True}, "additionalProperties": False}],
        "enum": [{"properties": {}}],
        "additionalProperties": False,
    }


def test_schemas_of_structural_tags_are_closed() -> None:
    tag = {"begin": "<a>", "schema": {"properties": {}}, "end": "</a>"}
    given = {"structures": [tag], "triggers": ["<a>"]}
    grammar = read({"structural_tag": given, "disable_additional_properties": True})
    assert grammar is not None
    schema = msgspec.json.decode(grammar.text)["structures"][0]["schema"]
    assert schema == {"properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("fields", "name", "reason"),
    [
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "does not apply to a grammar of the kind regex",
        ),
        (
            {"structured_outputs": {"choice": ["a"], "disable_additional_properties": True}},
            "structured_outputs.disable_additional_properties",
            "does not apply to a grammar of the kind choice",
        ),
        (
            {
                "structured_outputs": {
                    "json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True
                }
            },
            "structured_outputs.disable_any_whitespace",
            "cannot be combined",
        ),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "needs a grammar"),
    ],
)  # fmt: skip
def test_an_option_without_a_meaning_is_refused_by_name(
    fields: dict[str, Any], name: str, reason: str
) -> None:
    with pytest.raises(APIError, match=reason) as raised:
        read(**fields)
    assert raised.value.param == name
    assert str(raised.value).startswith(name)
