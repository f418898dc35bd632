"""Records the answers of a policy before the engine checks them."""

from __future__ import annotations

from dataclasses import dataclass

from ....core.contract.client import Load
from ....core.contract.hookspecs import hookimpl
from ....core.contract.policy import PreemptionCandidate, RequestView, StepView
from ..hosting import Listening, listen


@dataclass(frozen=True, slots=True)
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
    ) -> Listening:
        requests = tuple(candidate.request for candidate in candidates)
        return (
            yield from listen(lambda v, e, s: self.answers.append(Answer(v, e, s, needy, requests)))
        )


class AdmitListener:
    """Records every answer of `admit`."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    @hookimpl(wrapper=True, tryfirst=True)
    def admit(self, request: RequestView, load: Load) -> Listening:
        return (yield from listen(lambda v, e, s: self.answers.append(Answer(v, e, s, request))))
