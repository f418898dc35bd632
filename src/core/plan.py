"""What travels between the deciding core and the computing executor: plain data, nothing else.

A plan is incremental: a request's tokens and parameters are sent once, when it starts (and again,
whole, when it resumes after a preemption); later steps say only how many more of its tokens to
compute. The executor appends what it samples to its own copy of the tokens, so the next plan may
grant a token that is not known to the core yet.

Each `request_id` here is the engine's own id of one choice (`Request.engine_id`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStart:
    """All that the executor must know of a request; replaces whatever it held under that id."""

    request_id: str
    token_ids: tuple[int, ...]
    """Every known token: the prompt, then (after a preemption) what was generated so far. What lies
    before its grant's `start` is in its blocks already: from the prefix cache, or swapped in."""
    num_prompt_tokens: int
    sampling_params: SamplingParams
    seed: int
    """Seed of this request's noise, in [0, 2**63): the caller's, or drawn by the engine."""
    stop_token_ids: tuple[int, ...]
    """Tokens that would end the request; not to be sampled before min_tokens are generated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Compute `num_tokens` tokens of one request, from position `start` on."""

    request_id: str
    start: int
    """Tokens already in the KV cache: the position of the first token to compute."""
    num_tokens: int
    new_block_ids: tuple[int, ...]
    """Blocks to append to the request's block table, before computing."""
    samples: bool
    """Whether the last computed token's logits are sampled (False inside a chunked prompt)."""
    num_draft_tokens: int = 0
    """The last so many of `num_tokens` are drafts: the first ones of those that the executor proposed
    after this request's last grant, and holds until this one; the others are forgotten. Every one
    is verified; what is rejected counts as never computed."""
    max_draft_tokens: int = 0
    """How many tokens may be proposed for this request after this step. If all of them and all of
    this step's are accepted, one more token stays within max_tokens and max_model_len."""
    num_lookahead_tokens: int = 0
    """Slots past the last token of this grant that `new_block_ids` pay for: a draft model writes there
    while it proposes."""

    @property
    def gives_back(self) -> bool:
        """Whether core and executor cut the block table after this step, both to the blocks of its
        known tokens (the sampled ones included) and of the drafts that were proposed for it. No
        other plan is open then."""
        return bool(self.num_draft_tokens or self.num_lookahead_tokens)

    @property
    def speculates(self) -> bool:
        """Whether it verifies drafts, or new ones may be proposed after it."""
        return bool(self.num_draft_tokens or self.max_draft_tokens)


class CopyDirection(StrEnum):
    """Which way KV blocks travel: out of the device's memory into the host's, or back in."""

    OUT = "out"
    IN = "in"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopies:
    """KV blocks to copy between device and host, in one batch."""

    direction: CopyDirection
    pairs: tuple[tuple[int, int], ...]
    """(source block, target block): device to host for OUT, host to device for IN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step of the device. Order of effects: forget `ended`, take `starts`, do `copies` one
    after the other, compute `grants`. A block that is copied out may be written by this very
    step."""

    step_id: int
    ended: tuple[str, ...] = ()
    """Requests that finished, failed or were preempted since the last plan."""
    starts: tuple[RequestStart, ...] = ()
    copies: tuple[BlockCopies, ...] = ()
    grants: tuple[Grant, ...] = ()
    draft_token_budget: int = 0
    """Tokens that this step has left: a draft model may catch up so many that it has missed."""

    @property
    def num_tokens(self) -> int:
        """Tokens that this step computes, over all requests."""
        return sum(grant.num_tokens for grant in self.grants)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probability of a sampled token, its rank (1 is the most likely), and the top ones."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability), most likely first; as many as the request asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailure:
    """One request that the executor could not compute in this step; the others are unharmed."""

    request_id: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step produced, aligned with `plan.grants`."""

    step_id: int
    token_ids: tuple[tuple[int, ...], ...]
    """Sampled tokens per grant: none where the grant does not sample, else the accepted drafts and
    one more."""
    logprobs: tuple[tuple[TokenLogprobs, ...], ...] | None = None
    """Per grant, one per sampled token for requests that asked; None when nobody asked."""
    failures: tuple[RequestFailure, ...] = ()
    num_proposed_tokens: tuple[int, ...] | None = None
    """Draft tokens per grant that the executor holds ready for the next plan; None: none for anyone."""
    proposal_seconds: float = 0.0
    """Time that proposing took, of the step's."""
