"""Wrong speculative methods."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.providers.speculation import Draft, ProposalBatch, ProposalRequest
from tokenmill.plugins.speculative.ngram import NgramOptions, NgramSpeculator
from tokenmill.testing.conformance.policies import speculator as suite

from . import fails


class LastToken:
    """Right: drafts the last token again."""

    @hookimpl
    def propose(self, batch: ProposalBatch) -> Any:
        return self.answer(batch)

    def answer(self, batch: ProposalBatch) -> Any:
        return [self.draft(request) for request in batch.requests]

    def draft(self, request: ProposalRequest) -> Draft:
        return Draft(token_ids=tuple(request.token_ids[-1:]))


def is_in_an_engine(batch: ProposalBatch) -> bool:
    return any(request.engine_id.startswith("request-") for request in batch.requests)


@fails(suite.check_it_never_raises)
class Raises(LastToken):
    def answer(self, batch: ProposalBatch) -> Any:
        if set(batch.ended) & set(batch.started) and not is_in_an_engine(batch):
            raise KeyError("it ended and starts?")
        return super().answer(batch)


@fails(suite.check_every_request_gets_one_draft)
class AnswersTokensInsteadOfDrafts(LastToken):
    def answer(self, batch: ProposalBatch) -> Any:
        drafts = super().answer(batch)
        return drafts if is_in_an_engine(batch) else [draft.token_ids for draft in drafts]


@fails(suite.check_every_request_gets_one_draft)
class AnswersNothingForAnEmptyBatch(LastToken):
    def answer(self, batch: ProposalBatch) -> Any:
        return super().answer(batch) or None


@fails(suite.check_no_draft_is_longer_than_asked)
class DraftsTooMany(LastToken):
    def answer(self, batch: ProposalBatch) -> Sequence[Draft]:
        many = 1 if is_in_an_engine(batch) else 4
        return [Draft(token_ids=r.token_ids[:1] * many) for r in batch.requests]


@fails(suite.check_tokens_are_of_the_vocabulary)
class DraftsUnknownTokens(LastToken):
    """The token after the last one: not there for the last of the vocabulary."""

    def draft(self, request: ProposalRequest) -> Draft:
        return Draft(token_ids=(request.token_ids[-1] + (request.token_ids[-1] > 2),))


@fails(suite.check_hidden_states_are_not_kept)
class KeepsHiddenStates(LastToken):
    needs_hidden_states = True

    def __init__(self) -> None:
        self.before: dict[str, Any] = {}

    def answer(self, batch: ProposalBatch) -> Any:
        for engine_id in (*batch.ended, *batch.started):
            self.before.pop(engine_id, None)
        return super().answer(batch)

    def draft(self, request: ProposalRequest) -> Draft:
        before = self.before.get(request.engine_id)
        self.before[request.engine_id] = request.hidden_states
        if before is None or not before[-1].isfinite().all():
            return Draft()
        return Draft(token_ids=(int(before[-1].argmax()),))


@fails(suite.check_each_request_gets_a_draft_of_its_own)
class DraftsForTheWrongRequest(LastToken):
    def answer(self, batch: ProposalBatch) -> Any:
        return super().answer(batch)[::-1]


@fails(suite.check_each_request_gets_a_draft_of_its_own)
class LearnsFromOthers(LastToken):
    def __init__(self) -> None:
        self.followers: dict[int, int] = {}

    def answer(self, batch: ProposalBatch) -> Any:
        if any(request.engine_id == "again" for request in batch.requests):
            self.followers.clear()  # what an id had before is another check's business
        return super().answer(batch)

    def draft(self, request: ProposalRequest) -> Draft:
        found = self.followers.get(request.token_ids[-1])
        self.followers.update(itertools.pairwise(request.token_ids))
        return Draft() if found is None else Draft(token_ids=(found,))


@fails(suite.check_an_id_may_come_again)
class RemembersAnId(LastToken):
    def __init__(self) -> None:
        self.first: dict[str, Draft] = {}

    def draft(self, request: ProposalRequest) -> Draft:
        draft = super().draft(request)
        if not request.engine_id.startswith("again"):
            return draft
        return self.first.setdefault(request.engine_id, draft)


@fails(suite.check_nothing_is_kept_of_ended_requests)
class Leaking(NgramSpeculator):
    """Does not hear who ended, and begins anew when a name starts."""

    def __init__(self) -> None:
        super().__init__(NgramOptions())

    @hookimpl
    def propose(self, batch: ProposalBatch) -> list[Draft]:
        return super().propose(
            ProposalBatch(requests=batch.requests, ended=(), started=batch.started)
        )


engine_numbers: Counter[tuple[str, ...]] = Counter()


@fails(suite.check_it_is_deterministic)
class DraftsByChance(LastToken):
    """The second one that sees the same batch differs from the first."""

    is_silent: bool | None = None

    def answer(self, batch: ProposalBatch) -> Any:
        if self.is_silent is None and len(batch.requests) > 1 and not is_in_an_engine(batch):
            key = tuple(request.engine_id for request in batch.requests)
            self.is_silent = engine_numbers[key] % 2 == 1
            engine_numbers[key] += 1
        return [Draft() for _ in batch.requests] if self.is_silent else super().answer(batch)


@fails(suite.check_tokens_are_exact)
class ChangesTokensInAnEngine(LastToken):
    def answer(self, batch: ProposalBatch) -> Any:
        for request in batch.requests:
            if is_in_an_engine(batch):
                tokens = cast(list[int], request.token_ids)
                list.__setitem__(tokens, -1, (tokens[-1] + 1) % 3)
        return super().answer(batch)


@fails(suite.check_an_engine_takes_its_answers)
class TripsInAnEngine(LastToken):
    num_calls = 0

    def answer(self, batch: ProposalBatch) -> Any:
        self.num_calls += is_in_an_engine(batch)
        if self.num_calls == 21:
            raise RuntimeError("enough")
        return super().answer(batch)
