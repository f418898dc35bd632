"""Answers to the schemas of Debian's json-schema-test-suite validate; refusals name keywords."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema

from tests.backends.grammar.toy import SPEC, grammars, serve, text_of
from tokenmill.backends.grammar.base import GrammarError, MaskedRows
from tokenmill.backends.grammar.grammars import allow_all
from tokenmill.core.outputs import FinishReason
from tokenmill.core.requests.grammar import Grammar
from tokenmill.core.requests.sampling_params import SamplingParams

from .parts import need

FOLDER = Path("/usr/share/json-schema-test-suite/tests")
DRAFTS: Mapping[str, tuple[str, Any]] = {
    "draft4": ("http://json-schema.org/draft-04/schema#", jsonschema.Draft4Validator),
    "draft6": ("http://json-schema.org/draft-06/schema#", jsonschema.Draft6Validator),
    "draft7": ("http://json-schema.org/draft-07/schema#", jsonschema.Draft7Validator),
}
SEEDS = (1, 2, 3)
MAX_TOKENS = 400


class Case(NamedTuple):
    name: str
    schema: Any
    validator: Any


@functools.cache
def cases() -> tuple[Case, ...]:
    need("jsonschema_suite", "json-schema-test-suite")
    return tuple(_read())


def _read() -> Iterator[Case]:
    for draft, (uri, validator) in DRAFTS.items():
        for path in sorted((FOLDER / draft).glob("*.json")):
            for case in json.loads(path.read_text()):
                schema = case["schema"]
                if isinstance(schema, dict):
                    schema = {"$schema": uri} | schema
                yield Case(f"{draft} {path.stem}: {case['description']}", schema, validator)


def refusal(schema: Any) -> str | None:
    try:
        matcher = grammars().compile(Grammar.json_schema(schema)).matcher()
    except GrammarError as error:
        return str(error)
    row = MaskedRows(matcher=matcher, first_row=0, draft_token_ids=())
    grammars().fill([row], allow_all(1, SPEC.num_words))
    return matcher.error


def test_every_refusal_names_a_keyword_of_its_schema() -> None:
    found = [(case, refusal(case.schema)) for case in cases()]
    assert len(found) > 300
    assert sum(why is None for _, why in found) > 200
    for case, why in found:
        assert why is None or names_keyword(case, why), (case.name, why)


def names_keyword(case: Case, refusal: str) -> bool:
    known = {*_keywords(case.schema), "false"}
    if "$ref" in known:  # perhaps to the schema of schemas
        known |= {*_keywords(case.validator.META_SCHEMA)}
    return not known.isdisjoint(re.findall(r"[$\w]+", refusal))


def test_answers_that_stop_validate_and_bounded_ones_stop() -> None:
    served = [case for case in cases() if refusal(case.schema) is None]
    params = [
        SamplingParams(
            grammar=Grammar.json_schema(case.schema),
            max_tokens=MAX_TOKENS,
            seed=seed,
            temperature=1.0,
        )
        for case in served
        for seed in SEEDS
    ]
    requests = serve(
        params, max_num_seqs=64, num_gpu_blocks_override=64 * 50, prompt_length=8, per_step=64
    )
    stopped = 0
    bounded: list[bool] = []
    for index, request in enumerate(requests):
        case = served[index // len(SEEDS)]
        assert request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH), case.name
        has_stopped = request.finish_reason is FinishReason.STOP
        if has_stopped:
            stopped += 1
            check(case, text_of(request.token_ids[request.num_prompt_tokens :]))
        if is_bounded(case.schema):
            bounded.append(has_stopped)
    assert stopped > len(requests) / 2
    assert len(bounded) >= 60
    assert sum(bounded) >= 0.9 * len(bounded), f"{sum(bounded)} of {len(bounded)} ended"


def check(case: Case, text: str) -> None:
    """Compares decimal numbers: 0.1271 is a multiple of 0.0001, but not in binary."""
    number = Decimal if "multipleOf" in _keywords(case.schema) else float
    exact = json.loads(json.dumps(case.schema), parse_float=number)
    with localcontext(prec=2 * MAX_TOKENS):
        errors = list(case.validator(exact).iter_errors(json.loads(text, parse_float=number)))
    assert not errors, (case.name, text, errors[0].message)


def is_bounded(schema: Any) -> bool:
    """Whether the length of an answer has a limit, or numbers are all that has none."""
    if not isinstance(schema, dict):
        return False
    if "const" in schema or "enum" in schema:
        return True
    if "anyOf" in schema:
        return all(map(is_bounded, schema["anyOf"]))
    kinds = schema.get("type", "any")
    return all(_is_bounded(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _is_bounded(kind: str, schema: Mapping[str, Any]) -> bool:
    match kind:
        case "null" | "boolean" | "integer" | "number":
            return True
        case "string":
            return "maxLength" in schema
        case "array":
            return "maxItems" in schema and is_bounded(schema.get("items"))
        case "object":
            is_closed = schema.get("additionalProperties") is False
            return is_closed and all(map(is_bounded, schema.get("properties", {}).values()))
    return False


def _keywords(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema
        for value in schema.values():
            yield from _keywords(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _keywords(value)
