"""The suite for admissions, and for wrappers around `admit`."""

from __future__ import annotations

import asyncio
import math
import statistics
from contextlib import suppress
from itertools import product

from ....core.contract.client import Load
from ....core.contract.policy import Arrival, Refusal, RequestView
from ....core.engine.request import Request
from ....core.errors import RequestFailedError
from ....core.host.plugin_host import PluginHost
from ....core.requests.request_options import RequestOptions
from ....core.requests.sampling_params import SamplingParams
from ..engine.life import simulated_engine
from ..hosting import FailureWatch, fresh, load_host
from ..kept_memory import describe_growth
from ..reporting import Report, report_growth, report_time
from ..suites import suite
from .answers import AdmitListener, Answer


def check_it_never_raises(admission: object) -> None:
    """No request and no load makes `admit` raise: the client would get an error 500."""
    for answer in _ask(admission):
        assert answer.error is None, f"{_describe(answer.request)}: {answer.error!r}"


def check_it_answers_none_or_a_refusal(admission: object) -> None:
    """`admit` returns None to accept a request, or a Refusal."""
    for answer in _ask(admission):
        assert answer.value is None or isinstance(answer.value, Refusal), (
            f"{_describe(answer.request)}: {answer.value!r} is neither None nor a Refusal"
        )


def check_refusals_say_why_and_for_how_long(admission: object) -> None:
    """Every refusal has a reason, and the number of seconds after which to try again."""
    for answer in _ask(admission):
        if isinstance(answer.value, Refusal):
            _check_refusal(answer.value)


def check_before_admit_never_fails(admission: object) -> None:
    """`before_admit`, if there is one, answers None or an awaitable, and neither it nor the
    awaitable raises or takes too long."""
    watch = FailureWatch()
    asyncio.run(_prepare(load_host("admission", fresh(admission), watch)))
    assert not (failures := watch.describe("before_admit")), failures


def check_memory_growth_is_reported(admission: object, report: Report) -> None:
    """Report whether memory grows with the requests seen. Growth is no failure."""
    provider = fresh(admission)
    host = load_host("admission", provider)

    def live() -> None:
        for asked, load in product(_requests(), _loads()):
            with suppress(RequestFailedError):
                host.admit(asked, load)

    report_growth(report, describe_growth(provider, live))


def check_time_per_request_is_reported(admission: object, report: Report) -> None:
    """Report how long a decision takes. There is no limit."""
    seconds = [answer.seconds for answer in _ask(admission)]
    report_time(report, "admit()", statistics.median(seconds))


@suite
class AdmissionConformance:
    """The suite for an admission.

    Subclass it as Test..., with a fixture `admission` that returns an admission, or a function that
    makes one.
    """


def _ask(given: object) -> list[Answer]:
    """Answers for small and huge requests, on engines that are idle, busy or stopping."""
    listener = AdmitListener()
    host = load_host("admission", fresh(given), listener)
    for request, load in product(_requests(), _loads()):
        with suppress(RequestFailedError):  # the listener has recorded the exception
            host.admit(request, load)
    assert listener.answers, "`admit` was never called"
    return listener.answers


async def _prepare(host: PluginHost) -> None:
    """Small and huge arrivals, all at once, while an engine runs: `lifespan` has been entered."""
    async with simulated_engine(host):
        await asyncio.gather(
            *(host.before_admit(arrival) for arrival in _arrivals()), return_exceptions=True
        )


def _arrivals() -> list[Arrival]:
    sizes = product((1, 100, 50_000), (1, 100_000), (1, 3))
    return [
        Arrival(
            prompt_token_ids=(1,) * num_prompt_tokens,
            max_tokens=max_tokens,
            n=n,
            options=RequestOptions(request_id=f"request-{i}"),
        )
        for i, (num_prompt_tokens, max_tokens, n) in enumerate(sizes)
    ]


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
            options=RequestOptions(priority=priority),
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
        f"a refusal needs a reason that the client can read, got {refusal.reason!r}"
    )
    seconds = refusal.retry_after
    assert isinstance(seconds, int | float) and seconds >= 0 and math.isfinite(seconds), (
        f"retry_after is a number of seconds, 0 or more, got {seconds!r}"
    )


def _describe(request: RequestView) -> str:
    return f"{request.num_prompt_tokens} prompt tokens, max_tokens {request.max_tokens}"
