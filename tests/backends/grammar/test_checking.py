"""New grammars are tried in a process of their own, which may die of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tokenmill.backends.grammar import checking
from tokenmill.backends.grammar.checking import GrammarChecker
from tokenmill.backends.grammar.grammars import Grammars
from tokenmill.backends.grammar.worker import WorkerStart
from tokenmill.core.errors import InvalidRequestError, OverloadedError
from tokenmill.core.requests.grammar import Grammar

from .hostile import CRASHES, EATS, KILLED, SPINS, Hostile
from .toy import SPEC

GOOD = Grammar.json_schema({"type": "integer"})


START = WorkerStart(
    factory="tests.backends.grammar.hostile:make_hostile",
    options=None,
    options_type=None,
    spec=SPEC,
)


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker(START, Grammars(lambda: Hostile(SPEC)))
    yield checker
    checker.close()


def check(checker: GrammarChecker, *grammars: Grammar) -> list[Any]:
    """The ignored keywords of each, or its refusal."""

    async def run() -> list[Any]:
        checks = (checker.check(grammar) for grammar in grammars)
        return await asyncio.gather(*checks, return_exceptions=True)

    return asyncio.run(run())


def test_a_good_grammar_passes_and_a_lenient_one_names_what_it_ignores(
    checker: GrammarChecker,
) -> None:
    lenient = Grammar.json_schema({"type": "array", "uniqueItems": True}, is_strict=False)
    assert check(checker, GOOD, lenient, GOOD) == [(), ("uniqueItems",), ()]


REFUSED = {
    "uniqueItems is not supported": {"type": "array", "uniqueItems": True},
    "not is not supported": {"not": {}},
    "if, then is not supported": {"if": {}, "then": {}},
    "format 'moon' is not supported": {"type": "string", "format": "moon"},
    "oneOf is not supported": {"oneOf": [{"minItems": 1}, {"minItems": 2}]},
    "pattern: ": {"type": "string", "pattern": "(?!a)"},
    "\\$ref: ": {"$ref": "https://example.com/schema"},
    "a \\$ref leads to itself": {"$ref": "#"},
    "recursion limit": {"items": {}},
    "allows no answer": False,
}


def test_a_refusal_names_the_keyword(checker: GrammarChecker) -> None:
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"items": deep}
    schemas = [deep if "recursion" in why else schema for why, schema in REFUSED.items()]
    found = check(checker, *map(Grammar.json_schema, schemas))
    for why, refusal in zip(REFUSED, found, strict=True):
        with pytest.raises(InvalidRequestError, match=why) as raised:
            raise refusal
        assert raised.value.param == "grammar"


@pytest.mark.parametrize(
    ("text", "why"),
    [(SPINS, "takes more than"), (EATS, "MiB"), (CRASHES, "cannot be compiled")],
)
def test_a_grammar_that_kills_the_worker_is_refused_and_the_next_one_passes(
    checker: GrammarChecker, text: str, why: str
) -> None:
    first, refusal, second = check(checker, GOOD, Grammar.regex(text), Grammar.regex("a+"))
    assert first == second == ()
    with pytest.raises(InvalidRequestError, match=why):
        raise refusal


def test_a_grammar_is_tried_once(checker: GrammarChecker) -> None:
    deadly = Grammar.regex(CRASHES)
    first, _ = check(checker, deadly, Grammar.regex("c+"))
    child = checker.small.trial._child
    assert str(check(checker, deadly)[0]) == str(first)
    assert child is not None and child.is_alive, "the grammar was tried again"


def test_a_grammar_whose_worker_was_killed_by_others_may_be_sent_again(
    checker: GrammarChecker,
) -> None:
    for _ in range(2):
        refusal, passed = check(checker, Grammar.regex(KILLED), Grammar.regex("d+"))
        assert isinstance(refusal, OverloadedError)
        assert passed == ()


def test_a_known_grammar_does_not_wait_for_a_new_one(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten = Grammar.regex("e+")

    async def run() -> tuple[bool, Any]:
        await asyncio.gather(checker.check(GOOD), checker.check(forgotten))
        only_one = type(checker._grammars._kept)(max_count=1, max_size=1)
        monkeypatch.setattr(checker._grammars, "_kept", only_one)
        new = asyncio.create_task(checker.check(Grammar(kind="regex", text=SPINS, is_strict=False)))
        await asyncio.sleep(0)
        for _ in range(2):  # the first time, both have to be compiled again
            assert await asyncio.gather(checker.check(GOOD), checker.check(forgotten)) == [(), ()]
        is_waiting = not new.done()
        checker.small.trial.end_worker()  # instead of a second of waiting
        return is_waiting, (await asyncio.gather(new, return_exceptions=True))[0]

    is_waiting, refusal = asyncio.run(run())
    assert is_waiting
    assert isinstance(refusal, OverloadedError | InvalidRequestError)


def limit(checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let at most `most` small grammars wait."""
    for queue in (checker.small.trying, checker.small.compiling):
        monkeypatch.setattr(queue, "_max_count", most)


def integers(low: int, count: int) -> list[Grammar]:
    """New grammars, which compile in no time."""
    return [Grammar.json_schema({"const": number}) for number in range(low, low + count)]


def test_any_number_of_requests_wait_for_one_new_grammar(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(checker, monkeypatch, 1)
    assert check(checker, *integers(100, 1) * 200) == [()] * 200


def test_too_many_different_grammars_are_refused_until_there_is_room(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(checker, monkeypatch, 8)
    new = integers(200, 10)
    found = check(checker, *new, *new)
    assert found[:8] == found[10:18] == [()] * 8
    assert all(isinstance(found[i], OverloadedError) for i in (8, 9, 18, 19))
    assert check(checker, *new) == [()] * 10


def test_a_grammar_that_takes_its_whole_time_fails_no_other(checker: GrammarChecker) -> None:
    slow = Grammar.regex(SPINS)
    refusal, *others = check(checker, slow, *integers(300, 20) * 5)
    assert isinstance(refusal, InvalidRequestError)
    assert others == [()] * 100


def test_small_grammars_do_not_wait_for_large_ones_that_take_their_whole_time(
    checker: GrammarChecker,
) -> None:
    large = [Grammar.regex(SPINS + "x" * (checking.SMALL + i)) for i in range(50)]

    async def run() -> int:
        waiting = [asyncio.create_task(checker.check(grammar)) for grammar in large]
        await asyncio.sleep(0)
        assert await asyncio.gather(*map(checker.check, integers(600, 20))) == [()] * 20
        num_waiting = sum(not task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        checker.large.trial.end_worker()  # instead of a second of waiting
        return num_waiting

    assert asyncio.run(run()) == len(large)


def test_a_large_grammar_is_tried_too(checker: GrammarChecker) -> None:
    good = Grammar.json_schema({"enum": ["x" * checking.SMALL]})
    [passed, refusal] = check(checker, good, Grammar.regex("(" * checking.SMALL + "("))
    assert passed == ()
    assert isinstance(refusal, InvalidRequestError)


def test_a_caller_that_leaves_takes_nothing_from_the_others_and_the_last_one_frees_the_place(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(checker, monkeypatch, 1)
    first, second = integers(400, 2)
    is_free = threading.Event()

    async def run() -> list[Any]:
        checker.small.trying.thread.submit(is_free.wait)
        leaving = [asyncio.create_task(checker.check(first)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in leaving:
            task.cancel()
        await asyncio.wait(leaving)
        left, stays = (asyncio.create_task(checker.check(second)) for _ in range(2))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait([left])
        with pytest.raises(OverloadedError):
            await checker.check(first)
        is_free.set()
        return [await stays, await checker.check(first)]

    try:
        assert asyncio.run(run()) == [(), ()]
    finally:
        is_free.set()


def test_the_worker_can_be_started_ahead(checker: GrammarChecker) -> None:
    checker.small.trying.thread.submit(checker.small.trial.end_worker).result()
    checker.prepare()
    ahead = checker.small.trying.thread.submit(lambda: checker.small.trial._child).result()
    assert ahead is not None and ahead.is_alive
    assert check(checker, *integers(500, 1)) == [()]
    assert checker.small.trial._child is ahead


def test_closing_ends_a_worker_that_is_just_being_started() -> None:
    other = GrammarChecker(START, Grammars(lambda: Hostile(SPEC)))
    own = psutil.Process()
    before = own.children()
    other.prepare()
    other.close()
    for queue in (other.small.trying, other.small.compiling):
        queue.thread.shutdown()
    assert own.children() == before


def test_closing_ends_the_worker(checker: GrammarChecker) -> None:
    check(checker, Grammar.regex("b+"))
    child = checker.small.trial._child
    assert child is not None and child.is_alive
    checker.small.trial.end_worker()
    assert not child.is_alive
