"""Orders and preemption: who goes first, and who gives way."""

from __future__ import annotations

from typing import Any, cast

from tokenmill.core.contract.policy import PreemptionCandidate
from tokenmill.plugins.orders.fcfs import FirstComeFirstServed
from tokenmill.plugins.orders.priority import Priority
from tokenmill.plugins.preemption.recompute import Recompute

from .steps import FakeRequest

ANY = cast(Any, None)
REQUESTS = (
    FakeRequest(request_id="late", arrival_time=3.0),
    FakeRequest(request_id="early", arrival_time=1.0),
    FakeRequest(request_id="urgent", arrival_time=2.0, priority=-1),
)


def order(policy: FirstComeFirstServed | Priority) -> list[str]:
    return [r.request_id for r in sorted(REQUESTS, key=lambda r: policy.key(r, 9.0))]


def test_fcfs_goes_by_arrival_and_refuses_priorities() -> None:
    assert order(FirstComeFirstServed()) == ["early", "urgent", "late"]
    assert not FirstComeFirstServed.uses_priority


def test_priority_goes_by_priority_then_arrival() -> None:
    assert order(Priority()) == ["urgent", "early", "late"]
    assert Priority.uses_priority


def test_recompute_takes_the_last_come() -> None:
    candidates = tuple(
        PreemptionCandidate(request=request, num_freed_blocks=1, is_needy=False)
        for request in REQUESTS
    )
    victim = Recompute().preempt(ANY, ANY, candidates)
    assert (victim.request, victim.mode) == (REQUESTS[-1], "recompute")
