"""What a policy plugin sees and answers: views of requests and of the step to be decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class RequestView(Protocol):
    """A request, as policies may see it. All of it is read-only."""

    @property
    def request_id(self) -> str:
        """The id that answer and logs show. All prompts and choices of a call share it."""
        ...

    @property
    def prompt_index(self) -> int:
        """Place of the prompt in a call with several, from 0."""
        ...

    @property
    def choice_index(self) -> int:
        """Which of the `n` choices of its prompt this is, from 0."""
        ...

    @property
    def engine_id(self) -> str:
        """The engine's own id of this choice, unique among live requests: the key for what a
        policy remembers of it. ProposalRequest has the same one."""
        ...

    @property
    def client_request_id(self) -> str | None:
        """What the client itself calls the request: its X-Request-Id header."""
        ...

    @property
    def priority(self) -> int:
        """Lower goes first."""
        ...

    @property
    def user(self) -> str | None:
        """The end user, as the client names it in the body's `user`. Nobody has checked it."""
        ...

    @property
    def api_key_id(self) -> str | None:
        """Stands for the API key that the server let in: a keyed hash, never the key itself."""
        ...

    @property
    def metadata(self) -> Mapping[str, str]:
        """From the body's `metadata`, from headers that the operator allows, or from the embedding
        program; at most 16 pairs."""
        ...

    @property
    def cache_salt(self) -> str | None:
        """Only requests with the same salt share KV blocks. It may be a secret: do not log it."""
        ...

    @property
    def deadline(self) -> float | None:
        """Seconds of the engine's clock at which the request is ended with what it has; None: it
        may take as long as it likes."""
        ...

    @property
    def arrival_time(self) -> float:
        """Seconds of the engine's clock."""
        ...

    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and generated."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV was there at the last commit."""
        ...

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that could be granted now: known or in flight, neither computed nor granted."""
        ...

    @property
    def max_tokens(self) -> int:
        """Most tokens that it may generate."""
        ...

    @property
    def is_decoding(self) -> bool:
        """True when at most one known token is uncomputed: its next grant samples."""
        ...

    @property
    def is_swapped(self) -> bool:
        """True while its KV waits in host memory; to schedule it copies that back."""
        ...

    @property
    def num_preemptions(self) -> int: ...
    @property
    def num_blocks(self) -> int:
        """KV blocks that it holds."""
        ...


class StepView(Protocol):
    """One step while it is being decided. Nothing that a policy does here can break a rule."""

    @property
    def now(self) -> float: ...
    @property
    def running(self) -> tuple[RequestView, ...]:
        """Requests that hold KV blocks, most senior first, as they were when the step began."""
        ...

    @property
    def waiting(self) -> tuple[RequestView, ...]:
        """Requests that wait: swapped ones, then other preempted ones, then the rest in the order
        of the scheduling policy."""
        ...

    @property
    def budget(self) -> int:
        """Tokens that may still be granted in this step."""
        ...

    @property
    def num_granted(self) -> int:
        """Requests that were granted tokens so far."""
        ...

    def schedule(self, request: RequestView, max_tokens: int | None = None) -> int:
        """Grant a request up to `max_tokens` of its uncomputed tokens; returns how many it got.

        0 when there is no budget, no room or no reason; calling again is harmless. Running
        requests may preempt junior ones; a waiting one starts only if all its known tokens fit.
        """
        ...

    def limit(self, request: RequestView, max_tokens: int) -> None:
        """Grant this request at most `max_tokens` in this step; for wrappers, before they yield."""
        ...

    def wait_until(self, time: float) -> None:
        """Grant nothing on purpose, and be asked again at `time` (at most a second from now)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionCandidate:
    """A request that may be preempted, and what that would free."""

    request: RequestView
    num_freed_blocks: int
    """Blocks that become free at once; shared ones stay with the others."""
    is_needy: bool
    """True for the request that needs the blocks: to choose it is to let it stand back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """The answer of `preempt`."""

    request: RequestView
    mode: str = "recompute"
    """"recompute": free the blocks, compute the tokens again later. "swap": move the blocks to host
    memory and back; without room there it falls back to recompute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The answer of `admit` that keeps a request out."""

    reason: str
    retry_after: float = 1.0
    """Seconds after which the sender may try again."""
    is_rate_limit: bool = False
    """True: this sender asks too often, while others may come in (HTTP 429). False: the engine has
    too much to do (HTTP 503)."""


class SchedulingPolicy(Protocol):
    """Order of the waiting requests: one method. Registered as a `scheduling_policy`. It may have
    event hooks, too, to learn what became of the requests."""

    uses_priority: bool
    """False: requests with a priority other than 0 are refused, as it would have no effect."""

    def key(self, request: RequestView, now: float) -> tuple[float, ...]:
        """Smaller goes first; ties go by arrival."""
        ...
