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
        default=3, metadata={"help": "minimum length of a repeated ending, in tokens"}
    )
    boldness: Annotated[float, Meta(gt=0)] = field(
        default=1.0, metadata={"help": "drafted tokens per token of the repeated ending"}
    )


class SuffixSpeculator:
    """Drafts the tokens that followed the longest ending that occurred before."""

    def __init__(self, options: SuffixOptions) -> None:
        self._options = options
        self._automata: dict[str, SuffixAutomaton] = {}

    @hookimpl
    def propose(self, batch: ProposalBatch) -> list[Draft]:
        for engine_id in (*batch.ended, *batch.started):
            self._automata.pop(engine_id, None)
        return [Draft(token_ids=self._draft(request)) for request in batch.requests]

    def _draft(self, request: ProposalRequest) -> list[int]:
        automaton = self._automata.setdefault(request.engine_id, SuffixAutomaton())
        automaton.extend(request.token_ids[automaton.num_tokens :])
        if automaton.match < self._options.min_match:
            return []
        length = min(request.max_draft_tokens, int(automaton.match * self._options.boldness))
        draft = list(request.token_ids[automaton.place :][:length])
        while draft and len(draft) < length:  # past the end of the text: a loop goes on
            draft.append(draft[automaton.place - automaton.num_tokens])
        return draft
