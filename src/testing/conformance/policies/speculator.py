"""The suite for speculative methods, and for wrappers around `propose`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from ....core.contract.providers.speculation import Draft, ProposalBatch
from ....core.members import IS_DETERMINISTIC
from ..engine import speculating as engine
from ..engine.drafting import KIND, ProposeCall, ask, needs_hidden_states, prepare
from ..engine.proposal_lives import end_of, one_life, only, random_calls
from ..engine.workload import VOCAB_SIZE, EngineShape
from ..hosting import fresh, load_host
from ..kept_memory import check_nothing_is_kept
from ..reporting import Report, report_time
from ..suites import suite

_every_shape = pytest.mark.parametrize("shape", engine.SHAPES, ids=str)


def check_it_never_raises(speculative_method: object) -> None:
    """No order of starts, pauses, preemptions, returns and ends makes `propose` raise."""
    for call in ask(speculative_method, random_calls()):
        assert call.error is None, f"`propose` raised {call.error!r} for {call.batch}"


def check_every_request_gets_one_draft(speculative_method: object) -> None:
    """The answer is a sequence of Drafts, one per request; empty for an empty batch."""
    for call in _answered(speculative_method, [*random_calls(), end_of("nobody")]):
        number = len(call.batch.requests)
        assert isinstance(call.answer, Sequence) and len(call.answer) == number, (
            f"the answer for {number} requests must have {number} drafts, got {call.answer!r}"
        )
        for draft in call.answer:
            assert isinstance(draft, Draft), f"the answer must have Drafts, got {draft!r}"


def check_no_draft_is_longer_than_asked(speculative_method: object) -> None:
    """No draft has more tokens than its request's `max_draft_tokens`."""
    for call in _answered(speculative_method, random_calls()):
        for request in call.batch.requests:
            draft = call.drafts().get(request.engine_id, ())
            assert len(draft) <= request.max_draft_tokens, (
                f"the draft for {request.engine_id} has {len(draft)} tokens, at most "
                f"{request.max_draft_tokens} were asked for"
            )


def check_tokens_are_of_the_vocabulary(speculative_method: object) -> None:
    """Every draft token is an int, at least 0 and below the size of the vocabulary."""
    for call in _answered(speculative_method, random_calls()):
        for token in (t for draft in call.drafts().values() for t in draft):
            assert type(token) is int and 0 <= token < VOCAB_SIZE, (
                f"a draft has the token {token!r}, but ids are in [0, {VOCAB_SIZE})"
            )


def check_hidden_states_are_not_kept(speculative_method: object) -> None:
    """The next step overwrites hidden states: a speculator copies states that it keeps."""
    _skip_if_by_chance(speculative_method)
    if not needs_hidden_states(speculative_method):
        pytest.skip("it needs no hidden states")
    calls = random_calls()
    kept = _drafts(ask(speculative_method, calls, hidden_overwritten=False))
    _compare(kept, _drafts(ask(speculative_method, calls)), "after old states were overwritten")


def check_each_request_gets_a_draft_of_its_own(speculative_method: object) -> None:
    """A draft depends only on the tokens of its request, not on other requests or the order.

    If one user's text were used in drafts for another, the speed of answers would reveal it.
    """
    _skip_if_by_chance(speculative_method)
    calls = random_calls()
    together = _drafts(ask(speculative_method, calls))
    turned = [replace(call, requests=tuple(reversed(call.requests))) for call in calls]
    _compare(together, _drafts(ask(speculative_method, turned)), "in another request order")
    for engine_id in sorted({engine_id for _, engine_id in together}):
        alone = _drafts(ask(speculative_method, only(engine_id, calls)))
        expected = {key: draft for key, draft in together.items() if key[1] == engine_id}
        _compare(expected, alone, "without the other requests")


def check_an_id_may_come_again(speculative_method: object) -> None:
    """A new request with the id of an ended one gets drafts without traces of the old one."""
    _skip_if_by_chance(speculative_method)
    before, after = one_life("again", 1), one_life("again", 2)
    expected = _drafts(ask(speculative_method, after))
    at_once = [replace(after[0], ended=("again",)), *after[1:]]
    for calls in ([*before, end_of("again"), *after], [*before, *at_once]):
        found = ask(speculative_method, calls)[len(calls) - len(after) :]
        _compare(expected, _drafts(found), "after an earlier request with the same id")


def check_nothing_is_kept_of_ended_requests(speculative_method: object) -> None:
    """A speculator frees its data about a request when it ends: a server runs for months."""
    provider = fresh(speculative_method)
    host = load_host(KIND, provider)
    propose = prepare(host)

    def live(name: str, seed: int) -> None:
        for call in (*one_life(name, seed, num_calls=4), end_of(name)):
            propose(call)

    check_nothing_is_kept(provider, live)


def check_it_is_deterministic(speculative_method: object) -> None:
    """The same batches give the same drafts."""
    _skip_if_by_chance(speculative_method)
    first, second = (_drafts(ask(speculative_method, random_calls())) for _ in range(2))
    _compare(first, second, "in a second run with the same batches")


@_every_shape
def check_tokens_are_exact(speculative_method: object, shape: EngineShape) -> None:
    """An engine that verifies drafts gives every request the tokens of a run without them."""
    engine.check_tokens(speculative_method, shape)


@_every_shape
def check_an_engine_takes_its_answers(speculative_method: object, shape: EngineShape) -> None:
    """The engine never has to drop a draft, however often requests are preempted."""
    engine.check_answers(speculative_method, shape)


def check_time_per_call_is_reported(speculative_method: object, report: Report) -> None:
    """Report the median time of a call with about four requests. There is no limit."""
    seconds = [call.seconds for call in ask(speculative_method, random_calls())]
    report_time(report, "propose()", statistics.median(seconds))


@suite
class SpeculatorConformance:
    """The suite for a speculative method, or a wrapper around `propose`.

    Subclass it as Test..., with a fixture `speculative_method` that returns a method, or a function
    that makes one. An object with `@hookimpl(wrapper=True) def propose` is tested around the n-gram
    method. A method with `is_deterministic = False` may propose at random: tests that compare the
    drafts of two runs are skipped.
    """


def _answered(given: object, batches: Iterable[ProposalBatch]) -> list[ProposeCall]:
    """The calls that did not raise. Another test reports exceptions."""
    return [call for call in ask(given, batches) if call.error is None]


def _drafts(calls: Sequence[ProposeCall]) -> dict[tuple[int, str], tuple[int, ...]]:
    """The draft tokens by (number of the call, request)."""
    return {
        (i, engine_id): draft
        for i, call in enumerate(calls)
        for engine_id, draft in call.drafts().items()
    }


def _compare(
    expected: dict[tuple[int, str], tuple[int, ...]],
    found: dict[tuple[int, str], tuple[int, ...]],
    when: str,
) -> None:
    for key in expected.keys() & found.keys():
        assert expected[key] == found[key], (
            f"the draft for {key[1]} was {expected[key]}, but {found[key]} {when}"
        )


def _skip_if_by_chance(given: object) -> None:
    if not IS_DETERMINISTIC.of(fresh(given)):
        pytest.skip("is_deterministic is False")
