"""The contract of speculation: a speculator proposes draft tokens, and the engine verifies them.

After sampling, the device thread calls `propose` for drafts. The next plan computes the last
known token, and the draft tokens that fit into the budget and the free blocks. The executor accepts
draft tokens up to the first wrong one, so drafts do not change what is generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...interfaces import Tokenizer
from ...requests.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRequest:
    """A request that may speculate, in its state after this step's sampling."""

    engine_id: str
    """As in RequestView: each choice of a request has its own."""
    token_ids: Sequence[int]
    """All known tokens: prompt and output, including the one just sampled. Read-only, and valid
    during the call only: copy the ones that you want to keep."""
    num_prompt_tokens: int
    sampling_params: SamplingParams
    max_draft_tokens: int
    """Maximum number of tokens to propose, at least 1."""
    hidden_states: object | None = None
    """The model's hidden states after its last norm, a tensor [n, hidden_size] of the executor.

    Row i is the state at the token before the i-th of the last n known tokens. It predicts that
    token, so the last row belongs to the last known token. Valid during the call only. None unless
    the speculator needs hidden states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalBatch:
    """The argument of `propose`: the requests, and which ended and started since the last call.

    An id can be in both. Forget `ended` first, then add `started`.
    """

    requests: Sequence[ProposalRequest]
    ended: Sequence[str] = ()
    """Ids of requests that finished, failed or were preempted."""
    started: Sequence[str] = ()
    """Ids of requests that started, or came back after a preemption."""
    token_budget: int = 0
    """Tokens that the step had left. A speculator that computes with a model may catch up on this
    many tokens that it has missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Proposed next tokens of one request, in order. An empty draft proposes nothing."""

    token_ids: Sequence[int] = ()
    probs: object | None = None
    """The executor's handle of the distributions from which the tokens were drawn, as DraftModel
    returns it. None: each token counts as drawn with probability 1."""


class DraftModel(Protocol):
    """A second model on the executor's device, which proposes drafts.

    It is a whole model, whose KV uses the same block tables, or a head that continues from the
    target's hidden states.
    """

    @property
    def has_kv_cache(self) -> bool:
        """Whether drafts need KV slots while they are proposed, before they are granted."""
        ...

    @property
    def needs_hidden_states(self) -> bool:
        """Whether each request of `propose` must come with hidden states."""
        ...

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        """One draft per request of the batch, in its order."""
        ...


class SpeculationSupport(Protocol):
    """The executor's services for a speculator, available before the KV cache is sized."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int:
        """Length of one hidden state of the target model."""
        ...

    @property
    def num_speculative_tokens(self) -> int:
        """Maximum length of a draft."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The served model's tokenizer, for drafts that are made from text."""
        ...

    def load_draft_model(self, path: Path) -> DraftModel:
        """Load a model directory, GGUF file or draft head. Call it at most once.

        The model's memory is taken from the memory of the KV cache. Raises ConfigError when the
        model cannot be read or was made for another target.
        """
        ...


class Speculator(Protocol):
    """A provider of the slot `speculative_method`.

    It always gets token ids. It may also have `needs_hidden_states`, `proposes` and
    `is_deterministic`; see core/members.py. `prepare` is optional, too.
    """

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        """The hook `propose`; see hookspecs.py."""
        ...

    def prepare(self, support: SpeculationSupport) -> None:
        """Set up what needs the executor. Called once, while the model is loaded.

        Raise ConfigError for settings that cannot work; then the engine does not start.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationLimits:
    """The engine's limits on drafts."""

    num_speculative_tokens: int
    """Maximum number of draft tokens of a request in a step."""
    needs_lookahead: bool = False
    """Whether drafts need KV slots while they are proposed, before they are granted. True for a
    draft model with a KV cache of its own."""
