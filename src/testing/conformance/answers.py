"""Listens in on what a policy answers, before the engine makes something of it."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass

from ...core.contract.client import Load
from ...core.contract.hookspecs import hookimpl
from ...core.contract.policy import PreemptionCandidate, RequestView, StepView


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer to a hook's question."""

    value: object
    error: Exception | None
    """What was raised instead."""
    seconds: float
    request: RequestView
    """Whom the question was about: the needy request, or the one that arrives."""
    candidates: tuple[RequestView, ...] = ()


class PreemptListener:
    """Notes every answer of `preempt`."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    @hookimpl(wrapper=True, tryfirst=True)
    def preempt(
        self, step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
    ) -> Generator[None, object, object]:
        requests = tuple(candidate.request for candidate in candidates)
        return (yield from _listen(self.answers, needy, requests))


class AdmitListener:
    """Notes every answer of `admit`."""

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
