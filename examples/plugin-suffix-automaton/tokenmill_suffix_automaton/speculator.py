"""The speculative method and its options."""

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from tokenmill.plugin import Draft, ProposalBatch, ProposalRequest, hookimpl

from .automaton import SuffixAutomaton


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixOptions:
    """Options of the table [speculative_method]."""

    min_match: Annotated[int, Meta(ge=1)] = field(
        default=3, metadata={"help": "shortest repeated ending of the text to guess from"}
    )
    boldness: Annotated[float, Meta(gt=0)] = field(
        default=1.0, metadata={"help": "tokens to guess for each token of that ending"}
    )


class SuffixSpeculator:
    """Guesses what followed the longest ending that occurred before."""

    def __init__(self, options: SuffixOptions) -> None:
        self._options = options
        self._automata: dict[str, SuffixAutomaton] = {}

    @hookimpl
    def propose(self, batch: ProposalBatch) -> list[Draft]:
        for request_id in (*batch.ended, *batch.started):
            self._automata.pop(request_id, None)
        return [Draft(token_ids=self._guess(request)) for request in batch.requests]

    def _guess(self, request: ProposalRequest) -> list[int]:
        automaton = self._automata.setdefault(request.request_id, SuffixAutomaton())
        automaton.extend(request.token_ids[automaton.num_tokens :])
        if automaton.match < self._options.min_match:
            return []
        most = min(request.max_draft_tokens, int(automaton.match * self._options.boldness))
        guessed = list(request.token_ids[automaton.place :][:most])
        while guessed and len(guessed) < most:  # past the end of the text: a loop goes on
            guessed.append(guessed[automaton.place - automaton.num_tokens])
        return guessed
