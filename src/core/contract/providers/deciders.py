"""Policies that the engine calls through a hook, and the built-in decisions that replace them.

Factories return the policies. A built-in decision takes over when a policy fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..policy import PreemptionCandidate, Refusal, RequestView, StepView, Victim
from .speculation import Draft, ProposalBatch

if TYPE_CHECKING:
    from ..client import Load


class Scheduler(Protocol):
    """Divides a step among requests. A factory returns it; mark `schedule` with @hookimpl."""

    def schedule(self, step: StepView) -> object: ...


class PreemptionMode(Protocol):
    """Chooses which request to preempt. A factory returns it; mark `preempt` with @hookimpl."""

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that `preempt` may answer: "recompute", "swap" or both.

        The engine reserves host memory for swapped blocks only if "swap" is among them.
        """
        ...

    def preempt(
        self, step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
    ) -> Victim | None: ...


class SpeculativeMethod(Protocol):
    """Proposes draft tokens. A factory returns it; mark `propose` with @hookimpl.

    A method that needs the executor also has `prepare(support)`; see Speculator in speculation.py.
    """

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]: ...


class Admission(Protocol):
    """Admits or refuses arriving requests. A factory returns it; mark `admit` with @hookimpl."""

    def admit(self, request: RequestView, load: Load) -> Refusal | None: ...


def decode_first(step: StepView) -> None:
    """Schedule decodes, then prompts in progress, then waiting requests while there is room."""
    for request in sorted(step.running, key=lambda request: not request.is_decoding):
        step.schedule(request)
    for request in step.waiting:
        if not step.schedule(request):
            break


def last_come(candidates: Sequence[PreemptionCandidate]) -> Victim:
    """Choose the most junior candidate; its tokens are recomputed later."""
    return Victim(request=candidates[-1].request, mode="recompute")
