"""A step without an engine: it grants by budget and sequence limit, and notes what was granted."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenmill.core.contract.policy import RequestView
from tokenmill.core.requests.request_options import NO_OPTIONS, RequestOptions


@dataclass(eq=False, kw_only=True)
class FakeRequest:
    """A RequestView whose numbers are set by hand."""

    request_id: str
    num_prompt_tokens: int = 8
    num_tokens: int = 8
    num_computed_tokens: int = 0
    priority: int = 0
    options: RequestOptions = NO_OPTIONS
    choice_index: int = 0
    arrival_time: float = 0.0
    max_tokens: int = 16
    num_preemptions: int = 0
    num_blocks: int = 1
    is_swapped: bool = False

    @property
    def num_uncomputed_tokens(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        return self.num_uncomputed_tokens <= 1


@dataclass(eq=False, kw_only=True)
class FakeStep:
    """A StepView; `grants` says who got how many tokens, in the order of granting."""

    running: tuple[FakeRequest, ...] = ()
    waiting: tuple[FakeRequest, ...] = ()
    budget: int = 32
    max_num_seqs: int = 8
    now: float = 0.0
    grants: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)

    @property
    def num_granted(self) -> int:
        return len(self.grants)

    def schedule(self, request: RequestView, max_tokens: int | None = None) -> int:
        self.asked.append(request.request_id)
        if request.request_id in self.grants or not self._has_seat(request):
            return 0
        bounds = [request.num_uncomputed_tokens, self.budget]
        bounds += [] if max_tokens is None else [max_tokens]
        granted = min(*bounds, self.limits.get(request.request_id, self.budget))
        if granted > 0:
            self.grants[request.request_id] = granted
            self.budget -= granted
        return max(granted, 0)

    def limit(self, request: RequestView, max_tokens: int) -> None:
        self.limits[request.request_id] = max_tokens

    def wait_until(self, time: float) -> None:
        raise AssertionError("no policy here waits")

    def _has_seat(self, request: RequestView) -> bool:
        started = sum(r.request_id in self.grants for r in self.waiting)
        return request in self.running or len(self.running) + started < self.max_num_seqs


def decoding(request_id: str) -> FakeRequest:
    """One known token is not computed."""
    return FakeRequest(request_id=request_id, num_tokens=9, num_computed_tokens=8)


def prompt(request_id: str, num_tokens: int = 8, *, computed: int = 0) -> FakeRequest:
    """A prompt, `computed` tokens of which are in the KV cache."""
    return FakeRequest(
        request_id=request_id,
        num_prompt_tokens=num_tokens,
        num_tokens=num_tokens,
        num_computed_tokens=computed,
    )
