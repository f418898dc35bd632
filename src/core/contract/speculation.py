"""What a speculator sees and answers: drafts of the tokens to come, which the engine verifies.

The loop: after sampling, on the device thread, `propose` is asked for drafts; the next plan computes
as many of them as budget and free blocks allow, together with the last known token, and the
executor accepts a first part of them, so that what is generated stays what it would have been.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..interfaces import Tokenizer
from ..sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRequest:
    """A request that may speculate, as it stands after this step's sampling."""

    engine_id: str
    """As in RequestView: each choice of a request has its own."""
    token_ids: Sequence[int]
    """All known tokens, prompt and output, the one just sampled included. Not to be changed, and
    valid during the call only: a speculator copies what it wants to keep."""
    num_prompt_tokens: int
    sampling_params: SamplingParams
    max_draft_tokens: int
    """Most tokens to propose, at least 1."""
    hidden_states: object | None = None
    """For a speculator that needs them: the executor's tensor [n, hidden_size] of what the model made,
    after its last norm, of the tokens before the last n known ones. Row i chose the i-th of these n,
    so the last row chose the last known token. Valid during the call only; None if nobody asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalBatch:
    """One call of `propose`. What happened to requests since the last call comes with it: first
    forget `ended`, then take `started` in."""

    requests: Sequence[ProposalRequest]
    ended: Sequence[str] = ()
    """Ids of requests that finished, failed or were preempted."""
    started: Sequence[str] = ()
    """Ids of requests that started, or came back after a preemption."""
    token_budget: int = 0
    """Tokens that the step had left: so many may be caught up by a speculator that computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Tokens that may come next, in order; none is a good answer, too."""

    token_ids: Sequence[int] = ()
    probs: object | None = None
    """The executor's handle of the distributions that the tokens were drawn from, as DraftModel gives
    it; without one each token counts as certain."""


class DraftModel(Protocol):
    """A second model on the executor's device: a whole one, with its KV in the same block tables, or
    a head that goes on from the target's hidden states."""

    @property
    def has_kv_cache(self) -> bool:
        """Whether drafts need slots before they are granted."""
        ...

    @property
    def needs_hidden_states(self) -> bool:
        """Whether `propose` wants them with each request; then they come."""
        ...

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        """One draft per request of the batch, in its order."""
        ...


class SpeculationSupport(Protocol):
    """What the executor offers a speculator before the KV cache is sized."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int:
        """Of the target's hidden states."""
        ...

    @property
    def num_speculative_tokens(self) -> int:
        """The most that is ever asked for."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The served model's tokenizer, for drafts that are made from text."""
        ...

    def load_draft_model(self, path: Path) -> DraftModel:
        """Load a model directory, GGUF file or draft head, once. Its memory counts in that of the KV
        cache.

        Raises ConfigError when it cannot be read or was made for another target than this one.
        """
        ...


class Speculator(Protocol):
    """A provider of the slot `speculative_method`. Token ids are always given; one that also needs
    the model's hidden states has an attribute `needs_hidden_states = True`, read after `prepare`."""

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        """The hook; see hookspecs.py."""
        ...

    def prepare(self, support: SpeculationSupport) -> None:
        """Called once, while the model is loaded. Optional: only for one that needs the executor.

        Raises ConfigError for what cannot work; the start is refused then.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationLimits:
    """How the engine speculates."""

    num_speculative_tokens: int
    """The most draft tokens of a request in a step."""
    needs_lookahead: bool = False
    """Whether the drafts' own KV needs slots before they are granted: a draft model's do."""
