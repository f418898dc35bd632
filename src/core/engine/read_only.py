"""Read-only views of requests and steps for policies.

They cost almost nothing per step: fields that never change are slots of the view, and the others
are read by C functions (`attrgetter`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from ..contract.policy import RequestView, StepView
from ..request_options import KeyLimits

_set: Callable[[object, str, object], None] = object.__setattr__


def _refuse(view: object, name: str, value: object = None) -> None:
    raise AttributeError(f"{name!r} cannot be changed: policies only read requests and steps")


def _read(path: str) -> Any:
    return property(attrgetter(path))


class ReadOnlyRequest:
    """The view of a request. There is one view per request, so compare views with `is`."""

    request_id: str
    engine_id: str
    prompt_index: int
    choice_index: int
    client_request_id: str | None
    user: str | None
    api_key_id: str | None
    key_limits: KeyLimits | None
    metadata: Mapping[str, str]
    cache_salt: str | None
    deadline: float | None
    priority: int
    arrival_time: float
    num_prompt_tokens: int
    max_tokens: int
    __slots__ = ("_request", *__annotations__)

    def __init__(self, request: RequestView) -> None:
        _set(self, "_request", request)
        for name in self.__slots__[1:]:  # these never change
            _set(self, name, getattr(request, name))

    num_tokens: int = _read("_request.num_tokens")
    num_computed_tokens: int = _read("_request.num_computed_tokens")
    num_uncomputed_tokens: int = _read("_request.num_uncomputed_tokens")
    is_decoding: bool = _read("_request.is_decoding")
    is_swapped: bool = _read("_request.is_swapped")
    num_preemptions: int = _read("_request.num_preemptions")
    num_blocks: int = _read("_request.num_blocks")
    __setattr__ = __delattr__ = _refuse

    def __repr__(self) -> str:
        return f"<request {self.request_id!r}>"


class ReadOnlyStep:
    """The view of a step. Its methods are the bound methods of the step, so calls are direct."""

    __slots__ = ("_step", "limit", "now", "running", "schedule", "wait_until", "waiting")
    now: float
    running: tuple[RequestView, ...]
    waiting: tuple[RequestView, ...]
    schedule: Callable[..., int]
    limit: Callable[[RequestView, int], None]
    wait_until: Callable[[float], None]

    def __init__(self, step: StepView) -> None:
        _set(self, "_step", step)
        _set(self, "now", step.now)
        _set(self, "running", step.running)
        _set(self, "waiting", step.waiting)
        _set(self, "schedule", step.schedule)
        _set(self, "limit", step.limit)
        _set(self, "wait_until", step.wait_until)

    budget: int = _read("_step.budget")
    num_granted: int = _read("_step.num_granted")
    __setattr__ = __delattr__ = _refuse
