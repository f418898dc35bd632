"""Prompt lookup: find an earlier occurrence of the last tokens, and draft what followed it.

Source: Saxena 2023, "Prompt Lookup Decoding". The options are those of vLLM's ngram method. Answers
that edit, quote, summarize or extract copy long parts of their prompt, and code repeats itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from ...plugin import Draft, ProposalBatch, Registry, hookimpl, kinds

TOKENMILL_API = (1, 1)
DEFAULT_MIN, DEFAULT_MAX = 2, 4
FEW = 8
"""Number of new tokens up to which a plain loop is the fastest."""
Length = Annotated[int, Meta(ge=1, le=32)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramOptions:
    """Options of [speculative_method] use = "ngram"."""

    prompt_lookup_max: Length | None = field(
        default=None,
        metadata={
            "help": "maximum number of last tokens to look up; None: 4, or prompt_lookup_min if "
            "that is more"
        },
    )
    prompt_lookup_min: Length | None = field(
        default=None,
        metadata={
            "help": "minimum number of last tokens to look up; None: 2, or prompt_lookup_max if "
            "that is less"
        },
    )

    def __post_init__(self) -> None:
        if self.lengths.stop <= self.lengths.start:
            raise ValueError(
                f"prompt_lookup_min is {self.prompt_lookup_min}, more than prompt_lookup_max, "
                f"which is {self.prompt_lookup_max}"
            )

    @property
    def lengths(self) -> range:
        """All lengths of n-grams to look up."""
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low is None:
            low = DEFAULT_MIN if high is None else min(DEFAULT_MIN, high)
        return range(low, (max(DEFAULT_MAX, low) if high is None else high) + 1)


class NgramIndex:
    """The latest end position of each n-gram in one request's tokens, for all lengths to look up.

    Each token is added once, so time and memory are linear in the number of tokens.
    """

    def __init__(self, lengths: range) -> None:
        self._ends: dict[int, dict[int, int]] = {n: {} for n in reversed(lengths)}
        self._num_tokens = 0

    def continuation(self, token_ids: Sequence[int], num_tokens: int) -> Sequence[int]:
        """The tokens after the latest earlier occurrence of the last tokens; at most `num_tokens`.

        The longest n-gram that occurs earlier counts. If the copy reaches the end of the known
        tokens, it continues with its own beginning, so that a repetition continues as a repetition.
        Empty if the last tokens do not occur earlier.
        """
        self._extend(token_ids)
        length = len(token_ids)
        for n, ends in self._ends.items():
            end = ends.get(hash(tuple(token_ids[-n:]))) if n <= length else None
            if end is not None:
                return _copy(token_ids, end, num_tokens)
        return ()

    def _extend(self, token_ids: Sequence[int]) -> None:
        """Add all n-grams except those at the very end, which would only find themselves.

        Only their hashes are kept, to save memory. A collision only leads to a wrong draft.
        """
        known, self._num_tokens = self._num_tokens, len(token_ids) - 1
        if self._num_tokens - known > FEW:
            self._extend_by_many(token_ids, known)
            return
        for end in range(known + 1, self._num_tokens + 1):
            for n, ends in self._ends.items():
                if n <= end:
                    ends[hash(tuple(token_ids[end - n : end]))] = end

    def _extend_by_many(self, token_ids: Sequence[int], known: int) -> None:
        """Add the n-grams of many new tokens, for example of a prompt, without a Python loop."""
        for n, ends in self._ends.items():
            first = max(known + 1, n)
            window = token_ids[first - n : self._num_tokens]
            ngrams = map(hash, zip(*(window[i:] for i in range(n)), strict=False))
            ends.update(zip(ngrams, range(first, self._num_tokens + 1), strict=True))


class NgramSpeculator:
    """Drafts by lookup; keeps one index per request while the request runs."""

    def __init__(self, options: NgramOptions) -> None:
        self.lengths = options.lengths
        self.indexes: dict[str, NgramIndex] = {}
        """By `engine_id` of the request."""

    @hookimpl
    def propose(self, batch: ProposalBatch) -> list[Draft]:
        for engine_id in (*batch.ended, *batch.started):
            self.indexes.pop(engine_id, None)
        drafts = []
        for request in batch.requests:
            index = self.indexes.get(request.engine_id)
            if index is None:
                index = self.indexes[request.engine_id] = NgramIndex(self.lengths)
            found = index.continuation(request.token_ids, request.max_draft_tokens)
            drafts.append(Draft(token_ids=found))
        return drafts


def _copy(token_ids: Sequence[int], start: int, num_tokens: int) -> Sequence[int]:
    copied = list(token_ids[start : start + num_tokens])
    period = len(token_ids) - start
    while len(copied) < num_tokens:
        copied.append(copied[-period])
    return copied


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.SPECULATIVE_METHOD, "ngram", NgramSpeculator, options=NgramOptions)
