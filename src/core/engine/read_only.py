"""Read-only views of requests and steps for policies.

They cost almost nothing per step: fields that never change are slots of the view, and the others
are read by C functions (`attrgetter`). The slots can only be set here: `object.__setattr__` finds
properties without a setter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from ..contract.policy import RequestView, StepView
from ..requests.request_options import RequestOptions

View = TypeVar("View", bound=type)
_SETTERS: dict[type, Mapping[str, Callable[[object, object], None]]] = {}


def _seal(view: View) -> View:
    """Make the slots of a class readable only, and keep what sets them in `_SETTERS`."""
    slots = {name: vars(view)[name] for name in vars(view)["__slots__"]}
    _SETTERS[view] = {name: slot.__set__ for name, slot in slots.items()}
    for name, slot in slots.items():
        setattr(view, name, property(slot.__get__))
    return view


def _refuse(view: object, name: str, value: object = None) -> None:
    raise AttributeError(f"{name!r} cannot be changed: policies only read requests and steps")


def _read(path: str) -> Any:
    return property(attrgetter(path))


@_seal
class ReadOnlyRequest:
    """The view of a request. There is one view per request, so compare views with `is`."""

    request_id: str
    engine_id: str
    choice_index: int
    options: RequestOptions
    deadline: float | None
    priority: int
    arrival_time: float
    prompt_token_ids: tuple[int, ...]
    num_prompt_tokens: int
    max_tokens: int
    __slots__ = ("_request", *__annotations__)

    def __init__(self, request: RequestView) -> None:
        setters = _SETTERS[ReadOnlyRequest]
        setters["_request"](self, request)
        for name in self.__slots__[1:]:  # these never change
            setters[name](self, getattr(request, name))

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


@_seal
class ReadOnlyStep:
    """The view of a step. Its methods are the bound methods of the step, so calls are direct."""

    now: float
    running: tuple[RequestView, ...]
    waiting: tuple[RequestView, ...]
    schedule: Callable[..., int]
    limit: Callable[[RequestView, int], None]
    wait_until: Callable[[float], None]
    __slots__ = ("_step", *__annotations__)

    def __init__(self, step: StepView) -> None:
        setters = _SETTERS[ReadOnlyStep]
        setters["_step"](self, step)
        for name in self.__slots__[1:]:
            setters[name](self, getattr(step, name))

    budget: int = _read("_step.budget")
    num_granted: int = _read("_step.num_granted")
    __setattr__ = __delattr__ = _refuse
