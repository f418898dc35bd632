"""The suite for speculative methods, and for wrappers around `propose`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from ...core.contract.speculation import Draft, ProposalBatch
from .engine import speculating as engine
from .engine.drafting import KIND, Guess, ask, needs_hidden_states, prepare
from .engine.proposal_lives import end_of, one_life, only, random_calls
from .engine.workload import VOCAB_SIZE, EngineShape
from .hosting import fresh, load_host
from .kept_memory import reachable_bytes
from .reporting import report_time

_MOST_KEPT = 4096
"""Bytes that 200 ended requests may leave behind, all together."""
_every_shape = pytest.mark.parametrize("shape", engine.SHAPES, ids=str)


class SpeculatorConformance:
    """Subclass it as Test..., with a fixture `speculative_method` that returns one or a function
    making one.

    An object with `@hookimpl(wrapper=True) def propose` is checked around the n-gram method. One
    that guesses by chance has `is_deterministic = False`, and is not asked to repeat itself.
    """

    def test_it_never_raises(self, speculative_method: object) -> None:
        """Whoever comes, pauses, is preempted, comes back or ends, in whatever order."""
        for guess in ask(speculative_method, random_calls()):
            assert guess.error is None, f"`propose` raised {guess.error!r} for {guess.batch}"

    def test_every_request_gets_one_draft(self, speculative_method: object) -> None:
        """The answer is a sequence of Drafts, as long as the batch; for an empty batch it is empty."""
        for guess in _answered(speculative_method, [*random_calls(), end_of("nobody")]):
            number = len(guess.batch.requests)
            assert isinstance(guess.answer, Sequence) and len(guess.answer) == number, (
                f"{number} requests were given, the answer is {guess.answer!r}"
            )
            for draft in guess.answer:
                assert isinstance(draft, Draft), f"the answer has Drafts, got {draft!r}"

    def test_no_draft_is_longer_than_asked(self, speculative_method: object) -> None:
        """`max_draft_tokens` of each request holds."""
        for guess in _answered(speculative_method, random_calls()):
            for request in guess.batch.requests:
                draft = guess.drafts().get(request.engine_id, ())
                assert len(draft) <= request.max_draft_tokens, (
                    f"{len(draft)} tokens were guessed for {request.engine_id}, at most "
                    f"{request.max_draft_tokens} were asked for"
                )

    def test_tokens_are_of_the_vocabulary(self, speculative_method: object) -> None:
        """Every guessed token is an int from 0 to below the size of the vocabulary."""
        for guess in _answered(speculative_method, random_calls()):
            for token in (t for draft in guess.drafts().values() for t in draft):
                assert type(token) is int and 0 <= token < VOCAB_SIZE, (
                    f"{token!r} was guessed; ids are in [0, {VOCAB_SIZE})"
                )

    def test_the_tokens_of_requests_are_left_alone(self, speculative_method: object) -> None:
        """`token_ids` belong to the executor; what the speculator keeps, it copies."""
        for guess in ask(speculative_method, random_calls()):
            assert not guess.changed, f"`propose` changed token_ids of {', '.join(guess.changed)}"

    def test_hidden_states_are_not_kept(self, speculative_method: object) -> None:
        """The next step overwrites them; what the speculator wants to keep, it copies."""
        _skip_if_by_chance(speculative_method)
        if not needs_hidden_states(speculative_method):
            pytest.skip("it needs no hidden states")
        calls = random_calls()
        kept = _drafts(ask(speculative_method, calls, hidden_overwritten=False))
        _compare(kept, _drafts(ask(speculative_method, calls)), "after old hidden states were lost")

    def test_each_request_is_guessed_for_on_its_own(self, speculative_method: object) -> None:
        """A draft follows from the tokens of its request: neither others nor the order matter.

        What one user writes must not be guessed for another one: its speed would tell them.
        """
        _skip_if_by_chance(speculative_method)
        calls = random_calls()
        together = _drafts(ask(speculative_method, calls))
        turned = [replace(call, requests=tuple(reversed(call.requests))) for call in calls]
        _compare(together, _drafts(ask(speculative_method, turned)), "in another order")
        for engine_id in sorted({engine_id for _, engine_id in together}):
            alone = _drafts(ask(speculative_method, only(engine_id, calls)))
            expected = {key: draft for key, draft in together.items() if key[1] == engine_id}
            _compare(expected, alone, "without the others")

    def test_an_id_may_come_again(self, speculative_method: object) -> None:
        """Nothing of a request that ended shines through when its id is given to another one."""
        _skip_if_by_chance(speculative_method)
        before, after = one_life("again", 1), one_life("again", 2)
        expected = _drafts(ask(speculative_method, after))
        at_once = [replace(after[0], ended=("again",)), *after[1:]]
        for calls in ([*before, end_of("again"), *after], [*before, *at_once]):
            found = ask(speculative_method, calls)[len(calls) - len(after) :]
            _compare(expected, _drafts(found), "when another request had had its id")

    def test_nothing_is_kept_of_ended_requests(self, speculative_method: object) -> None:
        """A server runs for months: whatever is kept for a request goes when it ends."""
        provider = fresh(speculative_method)
        host = load_host(KIND, provider)
        propose = prepare(host)

        def live(names: Iterable[str]) -> int:
            for i, name in enumerate(names):
                for call in (*one_life(name, i, num_calls=4), end_of(name)):
                    propose(call)
            return reachable_bytes(provider)

        before = live(f"early-{i}" for i in range(8))
        kept = live(f"request-{i}" for i in range(200)) - before
        assert kept <= _MOST_KEPT, f"200 requests have ended, and {kept} bytes of them are kept"

    def test_it_is_deterministic(self, speculative_method: object) -> None:
        """The same calls, the same drafts."""
        _skip_if_by_chance(speculative_method)
        first, second = (_drafts(ask(speculative_method, random_calls())) for _ in range(2))
        _compare(first, second, "when it was asked the same again")

    @_every_shape
    def test_tokens_are_exact(self, speculative_method: object, shape: EngineShape) -> None:
        """In an engine that verifies its drafts every request gets the tokens it would have got."""
        engine.check_tokens(speculative_method, shape)

    @_every_shape
    def test_an_engine_takes_its_answers(
        self, speculative_method: object, shape: EngineShape
    ) -> None:
        """No answer has to be thrown away, however often requests are preempted."""
        engine.check_answers(speculative_method, shape)

    def test_time_per_call_is_reported(
        self, speculative_method: object, request: pytest.FixtureRequest
    ) -> None:
        """How long a call takes, about four requests in it; reported, not judged."""
        seconds = [guess.seconds for guess in ask(speculative_method, random_calls())]
        report_time(request, "propose()", statistics.median(seconds))


def _answered(given: object, calls: Iterable[ProposalBatch]) -> list[Guess]:
    """The calls that were answered: what raises has a test of its own."""
    return [guess for guess in ask(given, calls) if guess.error is None]


def _drafts(guesses: Sequence[Guess]) -> dict[tuple[int, str], tuple[int, ...]]:
    """By number of the call, and request."""
    return {
        (i, engine_id): draft
        for i, guess in enumerate(guesses)
        for engine_id, draft in guess.drafts().items()
    }


def _compare(
    expected: dict[tuple[int, str], tuple[int, ...]],
    found: dict[tuple[int, str], tuple[int, ...]],
    when: str,
) -> None:
    for key in expected.keys() & found.keys():
        assert expected[key] == found[key], (
            f"{expected[key]} was guessed for {key[1]}, and {found[key]} {when}"
        )


def _skip_if_by_chance(given: object) -> None:
    if not getattr(fresh(given), "is_deterministic", True):
        pytest.skip("it guesses by chance, and says so")
