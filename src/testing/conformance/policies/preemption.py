"""The suite for preemption modes, and for wrappers around `preempt`."""

from __future__ import annotations

import statistics
from typing import cast

import pytest

from ....core.contract.policy import Victim
from ....core.contract.providers.deciders import PreemptionMode
from ....core.host.plugin_host import PREEMPTION_MODES
from ..engine import checks
from ..engine.workload import AMPLE, NO_HOST_ROOM, STARVED, STARVED_TWO, EngineShape
from ..hosting import fresh, wraps
from ..reporting import Report, report_growth, report_time
from ..suites import suite
from .answers import Answer, PreemptListener

_KIND = "preemption_mode"
_every_shape = pytest.mark.parametrize("shape", (STARVED, STARVED_TWO, NO_HOST_ROOM), ids=str)


@_every_shape
def check_it_answers_every_question(preemption_mode: object, shape: EngineShape) -> None:
    """`preempt` never raises, and returns None or a Victim."""
    for answer in _answers(preemption_mode, shape):
        assert answer.error is None, f"`preempt` raised {answer.error!r}"
        assert answer.value is None or isinstance(answer.value, Victim), (
            f"`preempt` answers None or a Victim, got {answer.value!r}"
        )


@_every_shape
def check_victims_are_candidates(preemption_mode: object, shape: EngineShape) -> None:
    """Every victim is one of the candidates."""
    for answer, victim in _victims(preemption_mode, shape):
        assert any(victim.request is request for request in answer.candidates), (
            f"{victim.request.request_id} is not among the candidates "
            f"{[request.request_id for request in answer.candidates]}"
        )


@_every_shape
def check_modes_are_declared(preemption_mode: object, shape: EngineShape) -> None:
    """Every mode that `preempt` chooses is known to the engine and declared in `modes`."""
    declared = _declared_modes(preemption_mode)
    for _, victim in _victims(preemption_mode, shape):
        assert victim.mode in declared, (
            f"the mode {victim.mode!r} is not in modes = {declared!r}, of "
            f"{' and '.join(PREEMPTION_MODES)}"
        )


@_every_shape
def check_somebody_always_gives_way(preemption_mode: object, shape: EngineShape) -> None:
    """The answer None never leaves all requests waiting for blocks that no request frees."""
    checks.check_decides_itself(_KIND, preemption_mode, shape, "schedule")


@_every_shape
def check_every_request_finishes(preemption_mode: object, shape: EngineShape) -> None:
    """All requests end, however often they are preempted."""
    checks.check_everyone_finishes(_KIND, preemption_mode, shape)


@_every_shape
def check_tokens_are_the_same_with_and_without_preemption(
    preemption_mode: object, shape: EngineShape
) -> None:
    """An engine with too few blocks generates the same tokens as one with enough."""
    starved = checks.serve(_KIND, preemption_mode, shape)
    ample = checks.serve(_KIND, preemption_mode, AMPLE)
    assert starved.core.total_preemptions and not ample.core.total_preemptions
    for engine_id, tokens in starved.tokens.items():
        same = ample.tokens[engine_id][: len(tokens)]
        assert tokens == same == starved.expected(engine_id), (
            f"{engine_id} got {tokens} with preemptions and {same} without"
        )


@_every_shape
def check_blocks_and_host_blocks_come_back(preemption_mode: object, shape: EngineShape) -> None:
    """When all requests have ended or were aborted, no block or host block is in use."""
    checks.check_blocks_come_back(_KIND, preemption_mode, shape)
    if shape.num_host_blocks:
        checks.check_aborts(_KIND, preemption_mode, shape)


@_every_shape
def check_it_is_deterministic(preemption_mode: object, shape: EngineShape) -> None:
    """The same requests at the same times lead to the same plans."""
    checks.check_determinism(_KIND, preemption_mode, shape)


def check_memory_growth_is_reported(preemption_mode: object, report: Report) -> None:
    """Report whether the provider's memory grows while it works. Growth is no failure."""
    report_growth(report, checks.describe_memory_growth(_KIND, preemption_mode))


def check_time_per_decision_is_reported(preemption_mode: object, report: Report) -> None:
    """Report how long a decision takes. There is no limit."""
    seconds = [answer.seconds for answer in _answers(preemption_mode, STARVED)]
    report_time(report, "preempt()", statistics.median(seconds))


@suite
class PreemptionConformance:
    """The suite for a preemption mode, or a wrapper around `preempt`.

    Subclass it as Test..., with a fixture `preemption_mode` that returns a mode, or a function that
    makes one. An object with `@hookimpl(wrapper=True) def preempt` is tested around the default
    mode.
    """


def _answers(given: object, shape: EngineShape) -> list[Answer]:
    listener = PreemptListener()
    checks.serve(_KIND, given, shape, listener)
    assert listener.answers, "`preempt` was never called: blocks never ran out"
    return listener.answers


def _victims(given: object, shape: EngineShape) -> list[tuple[Answer, Victim]]:
    return [(a, a.value) for a in _answers(given, shape) if isinstance(a.value, Victim)]


def _declared_modes(given: object) -> tuple[str, ...]:
    provider = fresh(given)
    if wraps(provider, "preempt"):
        return PREEMPTION_MODES  # a wrapper passes on the modes of any provider
    return tuple(m for m in cast(PreemptionMode, provider).modes if m in PREEMPTION_MODES)
