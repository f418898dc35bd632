"""Wrong speculative methods."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.providers.speculation import Draft, ProposalBatch, ProposalRequest
from tokenmill.plugins.speculative.ngram import NgramOptions, NgramSpeculator
from tokenmill.testing import SpeculatorConformance


class OneFunction:
    """A speculative method that is one function."""

    def __init__(self, answer: Callable[[ProposalBatch], Any]) -> None:
        self._answer = answer

    @hookimpl
    def propose(self, batch: ProposalBatch) -> Any:
        return self._answer(batch)


def last_token(request: ProposalRequest) -> Draft:
    """A valid draft: the last token again."""
    return Draft(token_ids=tuple(request.token_ids[-1:]))


def is_in_an_engine(batch: ProposalBatch) -> bool:
    return any(request.engine_id.startswith("request-") for request in batch.requests)


class TestProposeRaises(SpeculatorConformance):
    fails = "test_it_never_raises"

    @pytest.fixture
    def speculative_method(self) -> object:
        def answer(batch: ProposalBatch) -> Any:
            if set(batch.ended) & set(batch.started) and not is_in_an_engine(batch):
                raise KeyError("it ended and starts?")
            return [last_token(request) for request in batch.requests]

        def make() -> object:
            return OneFunction(answer)

        return make


class TestAnswersTokensInsteadOfDrafts(SpeculatorConformance):
    fails = "test_every_request_gets_one_draft"

    @pytest.fixture
    def speculative_method(self) -> object:
        def answer(batch: ProposalBatch) -> Any:
            if is_in_an_engine(batch):
                return [last_token(request) for request in batch.requests]
            return [last_token(request).token_ids for request in batch.requests]

        return OneFunction(answer)


class TestAnswersNothingForAnEmptyBatch(SpeculatorConformance):
    fails = "test_every_request_gets_one_draft"

    @pytest.fixture
    def speculative_method(self) -> object:
        return OneFunction(lambda batch: [last_token(r) for r in batch.requests] or None)


class TestDraftsTooMany(SpeculatorConformance):
    fails = "test_no_draft_is_longer_than_asked"

    @pytest.fixture
    def speculative_method(self) -> object:
        def answer(batch: ProposalBatch) -> Sequence[Draft]:
            many = 1 if is_in_an_engine(batch) else 4
            return [Draft(token_ids=r.token_ids[:1] * many) for r in batch.requests]

        return OneFunction(answer)


class TestDraftsUnknownTokens(SpeculatorConformance):
    fails = "test_tokens_are_of_the_vocabulary"

    @pytest.fixture
    def speculative_method(self) -> object:
        def draft(request: ProposalRequest) -> Draft:
            # The token after the last one: not there for the last of the vocabulary.
            return Draft(token_ids=(request.token_ids[-1] + (request.token_ids[-1] > 2),))

        return OneFunction(lambda batch: [draft(request) for request in batch.requests])


class TestKeepsHiddenStates(SpeculatorConformance):
    fails = "test_hidden_states_are_not_kept"

    @pytest.fixture
    def speculative_method(self) -> object:
        class Keeping(OneFunction):
            needs_hidden_states = True

            def __init__(self) -> None:
                super().__init__(self.draft_all)
                self.before: dict[str, Any] = {}

            def draft_all(self, batch: ProposalBatch) -> Sequence[Draft]:
                for engine_id in (*batch.ended, *batch.started):
                    self.before.pop(engine_id, None)
                return [self.draft(request) for request in batch.requests]

            def draft(self, request: ProposalRequest) -> Draft:
                before = self.before.get(request.engine_id)
                self.before[request.engine_id] = request.hidden_states
                if before is None or not before[-1].isfinite().all():
                    return Draft()
                return Draft(token_ids=(int(before[-1].argmax()),))

        return Keeping


class TestDraftsForTheWrongRequest(SpeculatorConformance):
    fails = "test_each_request_gets_a_draft_of_its_own"

    @pytest.fixture
    def speculative_method(self) -> object:
        return OneFunction(lambda batch: [last_token(r) for r in reversed(batch.requests)])


class TestLearnsFromOthers(SpeculatorConformance):
    fails = "test_each_request_gets_a_draft_of_its_own"

    @pytest.fixture
    def speculative_method(self) -> object:
        def make() -> object:
            followers: dict[int, int] = {}

            def draft(request: ProposalRequest) -> Draft:
                found = followers.get(request.token_ids[-1])
                followers.update(itertools.pairwise(request.token_ids))
                return Draft() if found is None else Draft(token_ids=(found,))

            def answer(batch: ProposalBatch) -> Sequence[Draft]:
                if any(request.engine_id == "again" for request in batch.requests):
                    followers.clear()  # what an id had before is another check's business
                return [draft(request) for request in batch.requests]

            return OneFunction(answer)

        return make


class TestRemembersAnId(SpeculatorConformance):
    fails = "test_an_id_may_come_again"

    @pytest.fixture
    def speculative_method(self) -> object:
        def make() -> object:
            first: dict[str, int] = {}

            def draft(request: ProposalRequest) -> Draft:
                if not request.engine_id.startswith("again"):
                    return last_token(request)
                return Draft(
                    token_ids=(first.setdefault(request.engine_id, request.token_ids[-1]),)
                )

            return OneFunction(lambda batch: [draft(request) for request in batch.requests])

        return make


class TestKeepsWhatEnded(SpeculatorConformance):
    fails = "test_nothing_is_kept_of_ended_requests"

    @pytest.fixture
    def speculative_method(self) -> object:
        return Leaking


class Leaking(NgramSpeculator):
    """Does not hear who ended, and begins anew when a name starts."""

    def __init__(self) -> None:
        super().__init__(NgramOptions())

    @hookimpl
    def propose(self, batch: ProposalBatch) -> list[Draft]:
        return super().propose(
            ProposalBatch(requests=batch.requests, ended=(), started=batch.started)
        )


class TestDraftsByChance(SpeculatorConformance):
    fails = "test_it_is_deterministic"

    @pytest.fixture
    def speculative_method(self) -> object:
        """The second one that sees the same batch differs from the first."""
        seen: Counter[tuple[str, ...]] = Counter()

        def make() -> object:
            answers: list[bool] = []

            def answer(batch: ProposalBatch) -> Sequence[Draft]:
                if not answers and len(batch.requests) > 1 and not is_in_an_engine(batch):
                    key = tuple(request.engine_id for request in batch.requests)
                    answers.append(seen[key] % 2 == 0)
                    seen[key] += 1
                return [last_token(r) if all(answers) else Draft() for r in batch.requests]

            return OneFunction(answer)

        return make


class TestChangesTokensInAnEngine(SpeculatorConformance):
    fails = "test_tokens_are_exact"

    @pytest.fixture
    def speculative_method(self) -> object:
        def answer(batch: ProposalBatch) -> Sequence[Draft]:
            for request in batch.requests:
                if is_in_an_engine(batch):
                    tokens = cast(list[int], request.token_ids)
                    list.__setitem__(tokens, -1, (tokens[-1] + 1) % 3)
            return [last_token(request) for request in batch.requests]

        return OneFunction(answer)


class TestTripsInAnEngine(SpeculatorConformance):
    fails = "test_an_engine_takes_its_answers"

    @pytest.fixture
    def speculative_method(self) -> object:
        def make() -> object:
            calls = itertools.count()

            def answer(batch: ProposalBatch) -> Sequence[Draft]:
                if is_in_an_engine(batch) and next(calls) == 20:
                    raise RuntimeError("enough")
                return [last_token(request) for request in batch.requests]

            return OneFunction(answer)

        return make
