"""The suite for admissions: doorkeepers, and wrappers around `admit`."""

from __future__ import annotations

import math
import statistics
from contextlib import suppress
from itertools import product

import pytest

from ...core.contract.client import Load
from ...core.contract.policy import Refusal, RequestView
from ...core.engine.request import Request
from ...core.errors import RequestFailedError
from ...core.sampling_params import SamplingParams
from .answers import AdmitListener, Answer
from .hosting import fresh, load_host
from .kept_memory import describe_growth
from .reporting import report_growth, report_time


class AdmissionConformance:
    """Subclass it as Test..., with a fixture `admission`: one, or a function that makes one."""

    def test_it_never_raises(self, admission: object) -> None:
        """No request and no load makes it raise: the sender would get the blame of a 500."""
        for answer in _ask(admission):
            assert answer.error is None, f"{_describe(answer.request)}: {answer.error!r}"

    def test_it_answers_none_or_a_refusal(self, admission: object) -> None:
        """None lets a request in, a Refusal keeps it out, and there is nothing else."""
        for answer in _ask(admission):
            assert answer.value is None or isinstance(answer.value, Refusal), (
                f"{_describe(answer.request)}: {answer.value!r} is neither None nor a Refusal"
            )

    def test_refusals_say_why_and_for_how_long(self, admission: object) -> None:
        """The sender is told a reason, and after how many seconds it makes sense to try again."""
        for answer in _ask(admission):
            if isinstance(answer.value, Refusal):
                _check_refusal(answer.value)

    def test_memory_growth_is_reported(
        self, admission: object, request: pytest.FixtureRequest
    ) -> None:
        """Whether it keeps more and more of what it is asked; a finding, no failure."""
        provider = fresh(admission)
        host = load_host("admission", provider)

        def live() -> None:
            for asked, load in product(_requests(), _loads()):
                with suppress(RequestFailedError):
                    host.admit(asked, load)

        report_growth(request, describe_growth(provider, live))

    def test_time_per_request_is_reported(
        self, admission: object, request: pytest.FixtureRequest
    ) -> None:
        """How long a decision takes; reported, not judged."""
        seconds = [answer.seconds for answer in _ask(admission)]
        report_time(request, "admit()", statistics.median(seconds))


def _ask(given: object) -> list[Answer]:
    """What it answers for small and huge requests, on engines that are idle, busy or ending."""
    listener = AdmitListener()
    host = load_host("admission", fresh(given), listener)
    for request, load in product(_requests(), _loads()):
        with suppress(RequestFailedError):  # the listener has noted why
            host.admit(request, load)
    assert listener.answers, "nobody was asked"
    return listener.answers


def _requests() -> list[RequestView]:
    sizes = product((1, 100, 50_000), (1, 100_000), (-5, 0, 5))
    return [
        Request(
            request_id=f"request-{i}",
            prompt_token_ids=(1,) * num_prompt_tokens,
            sampling_params=SamplingParams(),
            max_tokens=max_tokens,
            arrival_time=float(i),
            seed=i,
            priority=priority,
        ).view
        for i, (num_prompt_tokens, max_tokens, priority) in enumerate(sizes)
    ]


def _loads() -> list[Load]:
    numbers = ((0, 0, 0.0, 0.0), (1, 0, 0.01, 0.0), (256, 1023, 1.0, 0.0), (8, 4, 0.5, 120.0))
    return [
        Load(
            num_running=num_running,
            num_waiting=num_waiting,
            kv_cache_usage=kv_cache_usage,
            stalled_for=stalled_for,
            is_alive=is_alive,
            is_draining=is_draining,
        )
        for num_running, num_waiting, kv_cache_usage, stalled_for in numbers
        for is_alive, is_draining in ((True, False), (True, True), (False, False))
    ]


def _check_refusal(refusal: Refusal) -> None:
    assert isinstance(refusal.reason, str) and refusal.reason.strip(), (
        f"a refusal needs a reason that its sender can read, got {refusal.reason!r}"
    )
    seconds = refusal.retry_after
    assert isinstance(seconds, int | float) and seconds >= 0 and math.isfinite(seconds), (
        f"retry_after is a number of seconds, 0 or more, got {seconds!r}"
    )


def _describe(request: RequestView) -> str:
    return f"{request.num_prompt_tokens} prompt tokens, max_tokens {request.max_tokens}"
