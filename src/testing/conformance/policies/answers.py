"""Records the answers of a policy before the engine checks them."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass

from ....core.contract.client import Load
from ....core.contract.hookspecs import hookimpl
from ....core.contract.policy import PreemptionCandidate, RequestView, StepView


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One call of a hook, with its answer."""

    value: object
    error: Exception | None
    """The exception that the call raised, if any."""
    seconds: float
    request: RequestView
    """The request that needs blocks (`preempt`), or the one that arrives (`admit`)."""
    candidates: tuple[RequestView, ...] = ()


class PreemptListener:
    """Records every answer of `preempt`."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    @hookimpl(wrapper=True, tryfirst=True)
    def preempt(
        self, step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
    ) -> Generator[None, object, object]:
        requests = tuple(candidate.request for candidate in candidates)
        return (yield from _listen(self.answers, needy, requests))


class AdmitListener:
    """Records every answer of `admit`."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    @hookimpl(wrapper=True, tryfirst=True)
    def admit(self, request: RequestView, load: Load) -> Generator[None, object, object]:
        return (yield from _listen(self.answers, request, ()))


def _listen(
    answers: list[Answer], request: RequestView, candidates: tuple[RequestView, ...]
) -> Generator[None, object, object]:
    value, caught = None, None
    started = time.perf_counter()
    try:
        value = yield
        return value
    except Exception as error:
        caught = error
        raise
    finally:
        answers.append(
            Answer(
                value=value,
                error=caught,
                seconds=time.perf_counter() - started,
                request=request,
                candidates=candidates,
            )
        )
