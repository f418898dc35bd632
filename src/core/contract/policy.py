"""Views of requests and steps that policies read, and the answers that policies give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..requests.request_options import RequestOptions


class RequestView(Protocol):
    """A request as policies see it. All of it is read-only."""

    @property
    def request_id(self) -> str:
        """The id in the answer and in logs. All prompts and choices of a call share it."""
        ...

    @property
    def choice_index(self) -> int:
        """Index of this choice among the `n` choices of its prompt, from 0."""
        ...

    @property
    def engine_id(self) -> str:
        """The engine's own id of this choice, unique among live requests.

        Use it as the key for what a policy remembers of a request. ProposalRequest has the same id.
        """
        ...

    @property
    def options(self) -> RequestOptions:
        """The sender, and the options that it gave."""
        ...

    @property
    def priority(self) -> int:
        """Requests with a lower number go first."""
        ...

    @property
    def deadline(self) -> float | None:
        """Time at which the request ends with the tokens that it has, in seconds of the engine's
        clock: its own `request_timeout` or --request-timeout, the first to pass. None: no limit."""
        ...

    @property
    def arrival_time(self) -> float:
        """Time of arrival, in seconds of the engine's clock."""
        ...

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The tokens of the prompt, after truncation."""
        ...

    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and generated."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV was in the cache at the last commit."""
        ...

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that could be granted now: known or in flight, neither computed nor granted."""
        ...

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens to generate."""
        ...

    @property
    def is_decoding(self) -> bool:
        """True when at most one known token is uncomputed, so that the next grant samples."""
        ...

    @property
    def is_swapped(self) -> bool:
        """True while the request's KV is in host memory. Scheduling the request copies it back."""
        ...

    @property
    def num_preemptions(self) -> int:
        """Number of times that the request was preempted."""
        ...

    @property
    def num_blocks(self) -> int:
        """Number of KV blocks that the request holds."""
        ...


class StepView(Protocol):
    """A step while a scheduler decides it. The engine enforces its rules on every call."""

    @property
    def now(self) -> float:
        """Time at which the step began, in seconds of the engine's clock."""
        ...

    @property
    def running(self) -> tuple[RequestView, ...]:
        """Requests that held KV blocks when the step began, most senior first.

        If the model has stages, requests that another stage computes now are left out.
        """
        ...

    @property
    def waiting(self) -> tuple[RequestView, ...]:
        """Waiting requests, in the order that `SchedulingPolicy` describes."""
        ...

    @property
    def budget(self) -> int:
        """Tokens that may still be granted in this step."""
        ...

    @property
    def num_granted(self) -> int:
        """Number of requests with a grant in this step so far."""
        ...

    def schedule(self, request: RequestView, max_tokens: int | None = None) -> int:
        """Grant a request up to `max_tokens` of its uncomputed tokens; returns the number granted.

        Returns 0 when there is no budget, no room, or nothing to compute. With stages, it also
        returns 0 when this step has its share of the requests. Calling it again is harmless. A
        running request may preempt junior requests. A waiting request starts only if all its known
        tokens fit into the KV cache.

        With some models the tokens of an image see each other. One step computes them all: a grant
        ends before such a span or covers it. If the span comes first, it is granted whole, even if
        it has more than `max_tokens`, as long as `max_tokens` is not 0 and `budget` allows it.
        """
        ...

    def limit(self, request: RequestView, max_tokens: int) -> None:
        """Grant this request at most `max_tokens` in this step. For wrappers, before they yield.

        A span that comes first is granted whole, see `schedule`; 0 grants nothing."""
        ...

    def wait_until(self, time: float) -> None:
        """Grant nothing on purpose. The engine asks again at `time`.

        All waits between two steps last a second at most. Then the engine asks once more, and a
        further wait counts as a failure: the built-in policy decides the step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionCandidate:
    """A request that may be preempted, and the number of blocks that this would free."""

    request: RequestView
    num_freed_blocks: int
    """Blocks that become free at once. Blocks shared with other requests are not counted."""
    is_needy: bool
    """True for the request that needs the blocks. If it is chosen, it gives up its own blocks and
    waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """An answer of `preempt`: the request to preempt, and how."""

    request: RequestView
    mode: str = "recompute"
    """"recompute": free the blocks, and compute the tokens again later. "swap": move the blocks to
    host memory, and back later; if host memory is full, the request is recomputed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One prompt of a call that `admit` has not decided yet."""

    prompt_token_ids: tuple[int, ...]
    """The tokens of the prompt, after truncation."""
    max_tokens: int
    """Maximum number of generated tokens of each choice."""
    n: int
    """Number of choices."""
    options: RequestOptions
    """The sender, and the options that it gave. `admit` gets the same; its `request_id` may get a
    suffix until then, if `prompt_index` is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An answer of `admit` that refuses the request."""

    reason: str
    retry_after: float = 1.0
    """Seconds after which the sender may try again."""
    is_rate_limit: bool = False
    """True: this sender sends too many requests (HTTP 429). False: the engine is overloaded
    (HTTP 503)."""


class SchedulingPolicy(Protocol):
    """The order of the waiting requests, by a sort key. Register it as a `scheduling_policy`.

    Preempted requests come back before new ones start, and both go in the order of their keys. It
    does not matter whether their blocks were swapped or freed. Equal keys go in order of arrival.
    The engine lets no new request start that is junior to a preempted one.

    It may also implement event hooks, for example to learn when requests finish. It must be another
    object than the plugin that offers it.
    """

    uses_priority: bool
    """False: the engine refuses requests with a priority other than 0; it would have no effect."""

    def key(self, request: RequestView, now: float) -> tuple[float, ...]:
        """Requests with a smaller key go first."""
        ...
