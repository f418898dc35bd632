"""Plans and results: the data that the engine and the executor exchange in each step.

A plan is incremental. The engine sends a request's tokens and parameters once, when the request
starts, and again when it resumes after a preemption. Later plans say only how many more of its
tokens to compute. The executor appends sampled tokens to its own copy, so the next plan may grant a
token whose id the engine does not know yet.

An `engine_id` is the engine's own id of one choice of a request. The answer's `request_id`, which
all choices share, is not part of plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from .errors import PluginError
from .regions import MAX_REGIONS, Regions
from .requests.media import MediaPlace
from .requests.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStart:
    """A request's tokens and parameters. They replace what the executor has for the same id."""

    engine_id: str
    token_ids: tuple[int, ...]
    """All known tokens: the prompt, and after a preemption also the tokens generated so far. The KV
    of tokens before `Grant.start` is in the blocks already: found in the cache, or swapped in."""
    num_prompt_tokens: int
    sampling_params: SamplingParams
    seed: int
    """Seed of this request's noise, in [0, 2**63): given by the caller, or drawn by the engine."""
    stop_token_ids: tuple[int, ...]
    """Tokens that end the request. They must not be sampled before min_tokens are generated."""
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    """The token ids of each bad word. The last one is never sampled after the others."""
    logits_processors: tuple[str, ...] = ()
    """Names of the logits processors that the request uses."""
    media: tuple[MediaPlace, ...] = ()
    """The items of its prompt, in order of their places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Compute `num_tokens` tokens of one request, from position `start` on."""

    engine_id: str
    start: int
    """Position of the first token to compute: the number of tokens already in the KV cache."""
    num_tokens: int
    new_block_ids: tuple[tuple[int, ...], ...]
    """Per group of layers (see `ModelInfo.kv_windows`), the blocks to append to the request's block
    table of this group before computing. Empty: none in any group."""
    num_passed_blocks: tuple[int, ...] = ()
    """Per group, the number of blocks at the beginning of the block table that the group's window
    has passed. Empty: none in any group.

    The request no longer holds them: their content may change, and no token from `start` on sees
    them. A starting request gets no blocks for them: `new_block_ids` follow them in its table."""
    samples: bool
    """Whether the logits of the last computed token are sampled. False inside a chunked prompt."""
    num_draft_tokens: int = 0
    """Number of draft tokens at the end of `num_tokens`.

    They are the first of the tokens that the executor proposed after this request's last grant; the
    executor drops the others. The step verifies all of them. A rejected token counts as never
    computed."""
    max_draft_tokens: int = 0
    """Maximum number of tokens to propose for this request after this step.

    If all of them and all of this step's drafts are accepted, one more token still fits into
    max_tokens and max_model_len."""
    scored_start: int = 0
    num_scored_tokens: int = 0
    """The result gets the log-probabilities of this many prompt tokens: those after the positions
    from `scored_start` on, all of which the grant computes. If the request has `pooling`, it gets
    the sum of the hidden states at these positions instead."""
    num_lookahead_tokens: int = 0
    """KV slots behind the last token of this grant, for which `new_block_ids` has room. A draft
    model writes there while it proposes."""

    @property
    def gives_back(self) -> bool:
        """Whether engine and executor both shorten the block tables after this step.

        They keep the blocks of the known tokens, including sampled ones, and of the proposed
        drafts. No other plan is open at that time.
        """
        return bool(self.num_draft_tokens or self.num_lookahead_tokens)

    @property
    def speculates(self) -> bool:
        """True if this grant verifies drafts, or if new drafts may follow it."""
        return bool(self.num_draft_tokens or self.max_draft_tokens)


class CopyDirection(StrEnum):
    """Direction in which KV blocks are copied: out of the device's memory, or back in."""

    OUT = "out"
    IN = "in"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopies:
    """KV blocks to copy between device and host, in one batch."""

    direction: CopyDirection
    pairs: tuple[tuple[int, int], ...]
    """(source block, target block): device to host for OUT, host to device for IN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaWork:
    """The work of a step on items of the encoder cache, in this order. All are digests."""

    evict: tuple[bytes, ...] = ()
    """Forget the embeddings of these items."""
    release: tuple[bytes, ...] = ()
    """Forget the pixels of these items: no request needs them any more."""
    encode: tuple[bytes, ...] = ()
    """Encode these items from their pixels, and keep their embeddings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step of the device.

    The executor forgets `ended`, adds `starts`, makes `copies` in order, does `media`, and then
    computes `grants`. The order matters: the same step may write to a block that it copies out.
    """

    step_id: int
    ended: tuple[str, ...] = ()
    """Requests that finished, failed or were preempted since the last plan."""
    starts: tuple[RequestStart, ...] = ()
    copies: tuple[BlockCopies, ...] = ()
    grants: tuple[Grant, ...] = ()
    draft_token_budget: int = 0
    """Tokens that this step has left. A draft model may compute this many tokens that it missed."""
    media: MediaWork | None = None
    """None: nothing changes in the encoder cache."""
    measures_regions: bool = False
    """Whether the result must have the regions of this step. True while a trace is taken."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens that this step computes, over all requests."""
        return sum(grant.num_tokens for grant in self.grants)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probability of a sampled or prompt token, and of the most likely ones in its place."""

    token_id: int
    """The token that was sampled, or that the prompt has."""
    logprob: float
    """The natural logarithm of its probability."""
    rank: int
    """1 for the most likely token."""
    top: tuple[tuple[int, float], ...] = ()
    """Pairs (token id, log-probability), most likely first, in the number that the request set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailure:
    """A request that the executor could not compute in this step. Other requests are unaffected."""

    engine_id: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The results of a step. Tuples with one entry per grant are in the order of `plan.grants`."""

    step_id: int
    token_ids: tuple[tuple[int, ...], ...]
    """Sampled tokens per grant: none if the grant does not sample, otherwise the accepted drafts
    and one more token."""
    logprobs: tuple[tuple[TokenLogprobs, ...], ...] | None = None
    """Per grant, one entry per sampled token if the request set `logprobs`; None if none did."""
    prompt_logprobs: tuple[tuple[TokenLogprobs, ...], ...] | None = None
    """Per grant, one entry per scored prompt token; None if no grant scores."""
    pooled: tuple[tuple[float, ...], ...] | None = None
    """Per grant, the sum of the hidden states that are pooled, empty without any; None if no grant
    pools."""
    failures: tuple[RequestFailure, ...] = ()
    num_proposed_tokens: tuple[int, ...] | None = None
    """Per grant, the number of draft tokens that the executor holds for the next plan. None: 0 for
    every grant."""
    proposed_token_ids: tuple[tuple[int, ...], ...] | None = None
    """The drafts, which the earlier stages need for the next plan. None: the executor has one
    stage, or there are no drafts."""
    proposal_seconds: float = 0.0
    """The part of the step's time in which drafts were proposed."""
    encoder_seconds: float = 0.0
    """The part of the step's time in which images were encoded."""
    expert_tokens: tuple[int, ...] = ()
    """Per rank, the number of tokens that its experts computed; a token counts once for each of its
    experts in each layer. Empty without expert parallelism."""
    rank_times: tuple[tuple[float, float], ...] = field(default=(), compare=False)
    """Per rank, when its worker began and ended its part of the step, on the monotonic clock of its
    machine. Empty without workers."""
    regions: tuple[Regions, ...] = field(default=(), compare=False)
    """The regions of each rank, if the plan has `measures_regions`. A rank that measures nothing
    has empty Regions. Empty: no rank has regions."""


def check_result(result: object, plan: StepPlan) -> None:
    """Raise PluginError unless an executor's answer is a result of this plan.

    Checks the type, the step and the number of entries. `commit` checks the number of tokens, if
    the request still wants them.
    """
    if not isinstance(result, StepResult):
        raise PluginError(f"the executor must return a StepResult, got {result!r:.100}")
    if result.step_id != plan.step_id:
        raise PluginError(f"the executor returned step {result.step_id} for step {plan.step_id}")
    if not all(isinstance(times, tuple) and len(times) == 2 for times in result.rank_times):
        raise PluginError("'rank_times' of the executor's result needs pairs of seconds")
    if not all(isinstance(one, Regions) and len(one) <= MAX_REGIONS for one in result.regions):
        raise PluginError("'regions' of the executor's result needs Regions, made by `Regions.of`")
    num_grants = len(plan.grants)
    for name in ("logprobs", "prompt_logprobs", "pooled", "num_proposed_tokens", "token_ids"):
        rows = getattr(result, name)
        if rows is None and name != "token_ids":
            continue
        if not isinstance(rows, tuple) or len(rows) != num_grants:
            raise PluginError(f"{name!r} of the executor's result needs {num_grants} entries")
