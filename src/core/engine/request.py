"""One request inside the engine.

Three numbers decide what a request needs next: num_tokens, num_computed_tokens and
num_inflight_tokens. Prefill, chunks, decode and resuming are all "compute the next k tokens".
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from enum import Enum

from ..outputs import FinishReason
from ..requests.media import MediaItem
from ..requests.pooling import Pooling
from ..requests.request_options import NO_OPTIONS, RequestOptions
from ..requests.sampling_params import SamplingParams
from .blocks.block_table import BlockTable
from .blocks.pool import hash_chain
from .read_only import ReadOnlyRequest


class RequestStatus(Enum):
    """State of a request. A finished request may still be part of an open plan."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class PromptGroup:
    """The choices of one prompt with n > 1. The first computes the prompt; all share its blocks."""

    members: list[Request] = field(default_factory=list)

    def must_wait(self, request: Request) -> bool:
        """True while another live sibling is computing the common prompt."""
        for member in self.members:
            if member is request:
                return False
            if member.status is not RequestStatus.FINISHED:
                return member.num_computed_tokens < member.num_prompt_tokens
        return False


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """The state of a request. Only the engine writes it; policies get its `view`."""

    request_id: str
    """The id in the answer, in logs and for plugins. All prompts and choices of a call share it."""
    engine_id: str = ""
    """Unique id of this choice, used in plans and by the executor. "": the same as `request_id`."""
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    max_tokens: int
    """Maximum number of tokens to generate; admission replaces None by a number."""
    arrival_time: float
    seed: int
    eos_token_ids: tuple[int, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    logits_processors: tuple[str, ...] = ()
    """Names of the logits processors that it uses."""
    allows_drafts: bool = True
    """Whether all of them work with draft tokens."""
    options: RequestOptions = NO_OPTIONS
    choice_index: int = 0
    deadline: float | None = None
    """Time of the engine's clock at which the request ends with the tokens that it has."""
    cache_root: bytes = b""
    """First hash of its hash chain. Only requests with the same root share blocks."""
    publishes: bool = True
    """Whether other requests may find its full blocks in the prefix cache."""
    group: PromptGroup | None = None
    scores_prompt: bool = False
    """Whether the log-probabilities of its prompt tokens are computed, or their hidden states are
    pooled. Of the choices of a prompt, only the first does this."""

    media: tuple[MediaItem, ...] = ()
    """The images of its prompt, in order of their places."""

    grammar_seconds: float = 0.0
    """Time that it waited for its grammar to be compiled, before it was queued."""
    sequence: int = 0
    """Unique number in the order of arrival. Priority and sequence make the rank."""
    status: RequestStatus = RequestStatus.WAITING
    token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_inflight_tokens: int = 0
    """Tokens granted in open plans."""
    num_inflight_samples: int = 0
    """Tokens that open plans will sample."""
    num_proposed_tokens: int = 0
    """Draft tokens that the executor holds for the request's next grant."""
    num_open_plans: int = 0
    """Open plans that compute the request or copy its blocks. Its blocks are not given back before
    these plans are committed."""
    num_stale_plans: int = 0
    """Open plans that grant the request tokens from before it was taken back. Their results do not
    count for it."""
    tables: list[BlockTable] = field(default_factory=list)
    """Its block table in each group of layers. Empty while it holds no blocks."""
    host_block_ids: list[int] = field(default_factory=list)
    """Host blocks that hold the KV of its computed tokens while the request is swapped out: group
    by group, from the first block that the group's window has not passed."""
    block_hashes: list[bytes] = field(default_factory=list)
    num_published_blocks: int = 0
    """Number of blocks at the beginning of its tables that need not be published any more."""
    num_passed_items: int = 0
    num_granted_items: int = 0
    """It holds the items of `media` from the first number on, up to the second."""
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    num_counted_prompt_tokens: int = 0
    """Prompt tokens already in the statistics, so that recomputing does not count them again."""
    num_scored_tokens: int = 0
    """Prompt tokens whose log-probabilities are known, or that are part of the embedding. After a
    preemption these are not computed again."""
    num_draft_tokens: int = 0
    """Draft tokens that were verified."""
    num_accepted_tokens: int = 0
    """Draft tokens that were accepted."""
    last_served_step: int = 0
    finish_reason: FinishReason | None = None
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    view: ReadOnlyRequest = field(init=False, repr=False)
    """The request as policies see it; always the same object."""

    def __post_init__(self) -> None:
        self.engine_id = self.engine_id or self.request_id
        self.token_ids = list(self.prompt_token_ids)
        self.view = ReadOnlyRequest(self)

    @property
    def rank(self) -> tuple[int, int]:
        """Seniority as a total order: a smaller rank is more senior."""
        return self.options.priority, self.sequence

    @property
    def priority(self) -> int:
        return self.options.priority

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_generated_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def block_ids(self) -> list[int]:
        """The blocks that it holds, group by group."""
        return [block for table in self.tables for block in table.block_ids]

    @property
    def num_blocks(self) -> int:
        return sum(len(table.block_ids) for table in self.tables)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that a plan could grant now. 0 once open plans will sample the last token."""
        expected = len(self.token_ids) + self.num_inflight_samples
        # With max_tokens 0 the prompt is computed, too.
        if expected - len(self.prompt_token_ids) >= (self.max_tokens or 1):
            return 0
        return expected - self.num_computed_tokens - self.num_inflight_tokens

    @property
    def is_decoding(self) -> bool:
        if self.status is not RequestStatus.RUNNING:
            return False
        # The same as `num_uncomputed_tokens` <= 1, inlined: every step reads it for every request.
        expected = len(self.token_ids) + self.num_inflight_samples
        uncomputed = expected - self.num_computed_tokens - self.num_inflight_tokens
        return uncomputed <= 1 or expected - len(self.prompt_token_ids) >= (self.max_tokens or 1)

    @property
    def is_preempted(self) -> bool:
        """True while the request waits after a preemption."""
        return self.status is RequestStatus.WAITING and self.num_preemptions > 0

    @property
    def is_swapped(self) -> bool:
        """True while the request's KV is in host memory."""
        return bool(self.host_block_ids)

    @property
    def media_digests(self) -> Set[bytes]:
        """The digests of its items, each once."""
        return {item.digest for item in self.media}

    @property
    def held_items(self) -> Sequence[MediaItem]:
        """The items that it holds in the encoder cache."""
        return self.media[self.num_passed_items : self.num_granted_items]

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end the request: the model's own, unless ignored, and those of the caller."""
        eos = () if self.sampling_params.ignore_eos else self.eos_token_ids
        return (*eos, *self.sampling_params.stop_token_ids)

    @property
    def may_skip_prompt(self) -> bool:
        """Whether prompt tokens that are in the prefix cache need not be computed. The last prompt
        token is always computed."""
        is_last = self.sampling_params.pooling is Pooling.LAST
        return is_last or not self.scored_range(0, self.num_prompt_tokens)

    def scored_range(self, start: int, end: int) -> range:
        """The positions in [start, end) whose logits score the prompt token after them, or whose
        hidden states are pooled."""
        if not self.scores_prompt:
            return range(0)
        pooling, num_tokens = self.sampling_params.pooling, self.num_prompt_tokens
        if pooling is Pooling.LAST:
            return range(max(start, num_tokens - 1), min(end, num_tokens))
        last = num_tokens if pooling is Pooling.MEAN else num_tokens - 1
        return range(max(start, self.num_scored_tokens), min(end, last))

    def hashes_for(self, num_blocks: int, block_size: int) -> Sequence[bytes]:
        """Hashes of the first `num_blocks` blocks. All tokens in these blocks must be known."""
        if len(self.block_hashes) < num_blocks:
            start = len(self.block_hashes) * block_size
            new = self.token_ids[start : num_blocks * block_size]
            parent = self.block_hashes[-1] if self.block_hashes else self.cache_root
            self.block_hashes += hash_chain(parent, new, block_size, self.media, start)
        return self.block_hashes[:num_blocks]
