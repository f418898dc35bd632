"""The suite for grammar backends, on a small vocabulary and grammars of few texts.

All texts of such a grammar are known, so the right mask is known, too: a token is allowed if the
answer with it begins one of the texts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import numpy as np

from ....backends.grammar.base import (
    GrammarBackend,
    GrammarError,
    GrammarSpec,
    MaskedRows,
    Masks,
    Matcher,
)
from ....backends.grammar.grammars import allow_all
from ....core.requests.grammar import Grammar, GrammarKind
from ..suites import suite

BackendClass = type[GrammarBackend]

_WORDS = (
    b"yes",
    b"no",
    b"ye",
    b"yest",
    b"er",
    b"day",
    b" not",
    b"se",
    b'{"',
    b'":',
    b"\xc3",
    b"\xa9",
)
_END, _OTHER_END, _CONTROL = 256 + len(_WORDS), 257 + len(_WORDS), 258 + len(_WORDS)
SPEC = GrammarSpec(
    token_bytes=(
        *(bytes([byte]) for byte in range(256)),
        *_WORDS,
        b"<end>",
        b"<turn>",
        b"no",  # a control token whose text a grammar allows
        *(b"",) * 5,
    ),
    special_ids=(_END, _OTHER_END, _CONTROL),
    end_ids=(_END, _OTHER_END),
)
TEXTS = ("yes", "yesterday", "no", "not yet", "née", "y")
CHOICE = Grammar.choice(TEXTS)
WHITESPACE: dict[str | None, dict[str, bool]] = {
    None: {"[1,2]": True, "[1, 2]": True, "[1,x": False},
    "": {"[1,2]": True, "[1, 2]": False},
    " ?": {"[1,2]": True, "[1, 2]": True, "[1,  2]": False, "[1,\n2]": False},
}
"""Whitespace of a grammar, and which beginnings of [1,2] it allows."""
NUM_WALKS = 12


def check_reasons_are_returned_for_any_vocabulary(grammar_backend: BackendClass) -> None:
    """`reasons_against` returns a list of strings for any vocabulary, and does not raise."""
    without_end = GrammarSpec(token_bytes=SPEC.token_bytes, special_ids=(), end_ids=())
    for spec in (SPEC, without_end):
        reasons = grammar_backend.reasons_against(spec)
        assert isinstance(reasons, list), f"reasons_against returned {reasons!r}, not a list"
        assert all(isinstance(one, str) and one for one in reasons), f"not strings: {reasons!r}"


def check_masks_allow_exactly_what_may_come_next(grammar_backend: BackendClass) -> None:
    """Along random answers, each mask allows exactly the tokens that may come next.

    These may be parts of a character, and end tokens if the answer may end, but no control tokens.
    """
    grammars = grammar_backend(SPEC)
    compiled = grammars.compile(CHOICE)
    for seed in range(NUM_WALKS):
        rng, matcher, written = random.Random(seed), compiled.matcher(), b""
        while True:
            allowed = _allowed(grammars, matcher)
            _expect_allowed(allowed, written)
            token_id = rng.choice(allowed)
            matcher.accept([token_id])
            assert matcher.error is None, f"{_name(token_id)} was allowed, then {matcher.error}"
            if token_id in SPEC.end_ids:
                break
            written += SPEC.token_bytes[token_id]


def check_after_the_end_only_end_tokens_are_allowed(grammar_backend: BackendClass) -> None:
    """After the end of an answer only the end tokens are allowed, and the mask is no error.

    A step that was planned before the end is known still asks for a mask.
    """
    grammars = grammar_backend(SPEC)
    matcher = grammars.compile(CHOICE).matcher()
    matcher.accept([*b"yes", _END])
    allowed = set(_allowed(grammars, matcher))
    assert allowed <= set(SPEC.end_ids), (
        f"after the end only end tokens may come, not {_names(allowed)}"
    )


def check_rows_after_drafts_follow_the_drafts(grammar_backend: BackendClass) -> None:
    """The rows after drafts have the masks that accepting the drafts would lead to."""
    grammars = grammar_backend(SPEC)
    compiled = grammars.compile(CHOICE)
    drafts = [*b"yest", SPEC.token_bytes.index(b"er")]
    masks = _masks(grammars, compiled.matcher(), drafts)
    for count in range(len(drafts) + 1):
        one_by_one = compiled.matcher()
        one_by_one.accept(drafts[:count])
        expected = _masks(grammars, one_by_one, ())[0]
        assert np.array_equal(masks[count], expected), (
            f"the mask after {count} drafts differs from that after {count} accepted tokens"
        )


def check_counting_allowed_tokens_changes_nothing(grammar_backend: BackendClass) -> None:
    """`count_allowed` stops at the first forbidden token, and changes nothing.

    Drafts are cut before they are verified, and may all be rejected.
    """
    grammars = grammar_backend(SPEC)
    matcher = grammars.compile(CHOICE).matcher()
    matcher.accept(list(b"y"))
    before = _masks(grammars, matcher, ())
    for token_ids, count in ((b"es", 2), (b"exs", 1), (b"o", 0), (b"", 0)):
        found = matcher.count_allowed(list(token_ids))
        assert found == count, (
            f"after 'y', {count} tokens of {token_ids!r} are allowed, not {found}"
        )
    after_end = matcher.count_allowed([*b"es", _END, *b"n"])
    assert after_end == 3, f"after 'y', 'es' and an end are allowed: 3 tokens, not {after_end}"
    assert matcher.error is None, f"count_allowed caused an error: {matcher.error}"
    assert np.array_equal(_masks(grammars, matcher, ()), before), "count_allowed changed the state"


def check_a_matcher_is_rebuilt_from_tokens(grammar_backend: BackendClass) -> None:
    """A matcher that accepts all tokens at once, as after a preemption, equals one that got them
    one by one."""
    grammars = grammar_backend(SPEC)
    compiled = grammars.compile(CHOICE)
    at_once, one_by_one = compiled.matcher(), compiled.matcher()
    tokens = list("née".encode()[:2])
    at_once.accept(tokens)
    for token_id in tokens:
        one_by_one.accept([token_id])
    assert np.array_equal(_masks(grammars, at_once, ()), _masks(grammars, one_by_one, ()))


def check_answers_do_not_influence_each_other(grammar_backend: BackendClass) -> None:
    """Matchers of one grammar are independent, and only their own rows are written."""
    grammars = grammar_backend(SPEC)
    compiled = grammars.compile(CHOICE)
    first, second, broken = compiled.matcher(), compiled.matcher(), compiled.matcher()
    alone = _masks(grammars, second, ())[0]
    first.accept(list(b"no"))
    broken.accept(list(b"q"))
    masks = allow_all(5, SPEC.num_words)
    grammars.fill([_rows(second, 3), _rows(first, 1)], masks)
    assert np.array_equal(masks[3], alone), "another answer's tokens changed a mask"
    _expect_allowed(_tokens_of(masks[1]), b"no")
    for row in (0, 2, 4):
        assert (masks[row] == -1).all(), f"row {row} belongs to no answer and was written"


def check_a_forbidden_token_ends_one_answer(grammar_backend: BackendClass) -> None:
    """A forbidden token is an error of its matcher, not an exception, and the error stays."""
    compiled = grammar_backend(SPEC).compile(CHOICE)
    matcher, neighbour = compiled.matcher(), compiled.matcher()
    matcher.accept(list(b"yx"))
    assert isinstance(matcher.error, str) and matcher.error, "a forbidden token is no error"
    matcher.accept(list(b"e"))
    assert matcher.error, "the error of a forbidden token was forgotten"
    assert neighbour.error is None, "the error of one answer is also that of another"


def check_a_wrong_grammar_is_refused_with_a_reason(grammar_backend: BackendClass) -> None:
    """A grammar that cannot be compiled raises GrammarError with a reason for the client."""
    grammars = grammar_backend(SPEC)
    for grammar in (
        Grammar.regex("(("),
        Grammar.json_schema({"type": "no such type"}),
        Grammar(kind="lark", text="start: nothing_of_this_name"),  # type: ignore[arg-type]
    ):
        try:
            grammars.compile(grammar)
        except GrammarError as error:
            assert str(error), f"the refusal of {grammar.text!r} has no reason"
        else:
            raise AssertionError(f"{grammar.text!r} was compiled")


def check_whitespace_of_json_is_the_grammars(grammar_backend: BackendClass) -> None:
    """The grammar's whitespace, and no other, may be between the parts of JSON. A backend that
    cannot do this raises GrammarError."""
    grammars = grammar_backend(SPEC)
    schema = msgspec.json.encode({"const": [1, 2]}).decode()
    for whitespace, texts in WHITESPACE.items():
        try:
            compiled = grammars.compile(
                Grammar(kind=GrammarKind.JSON_SCHEMA, text=schema, whitespace=whitespace)
            )
        except GrammarError:
            continue
        for text, expected in texts.items():
            found = compiled.matcher().count_allowed(list(text.encode())) == len(text)
            which = "allowed" if found else "forbidden"
            assert found == expected, f"with the whitespace {whitespace!r} {text!r} is {which}"


@suite
class GrammarConformance:
    """The suite for a grammar backend.

    Subclass it as Test..., with a fixture `grammar_backend` that returns the backend's class.
    """


def _expect_allowed(allowed: Sequence[int], written: bytes) -> None:
    expected = {
        token_id
        for token_id, data in enumerate(SPEC.token_bytes)
        if data
        and token_id not in SPEC.special_ids
        and any(text.encode().startswith(written + data) for text in TEXTS)
    }
    if any(text.encode() == written for text in TEXTS):
        expected |= set(SPEC.end_ids)
    missing, wrong = expected - set(allowed), set(allowed) - expected
    assert not missing, f"after {written!r} {_names(missing)} may come, but are forbidden"
    assert not wrong, f"after {written!r} {_names(wrong)} may not come, but are allowed"


def _allowed(grammars: GrammarBackend, matcher: Matcher) -> list[int]:
    return _tokens_of(_masks(grammars, matcher, ())[0])


def _masks(grammars: GrammarBackend, matcher: Matcher, drafts: Sequence[int]) -> Masks:
    masks = allow_all(1 + len(drafts), SPEC.num_words)
    grammars.fill([_rows(matcher, 0, drafts)], masks)
    assert matcher.error is None, f"the mask is an error: {matcher.error}"
    return masks


def _rows(matcher: Matcher, first_row: int, drafts: Sequence[int] = ()) -> MaskedRows:
    return MaskedRows(matcher=matcher, first_row=first_row, draft_token_ids=drafts)


def _tokens_of(mask_w: Masks) -> list[int]:
    bits = np.unpackbits(mask_w.view(np.uint8), bitorder="little")[: len(SPEC.token_bytes)]
    found: list[int] = bits.nonzero()[0].tolist()
    return found


def _name(token_id: int) -> str:
    return f"{token_id} ({SPEC.token_bytes[token_id]!r})"


def _names(token_ids: set[int]) -> str:
    return ", ".join(map(_name, sorted(token_ids)))
