"""Routes that answer with a trace of the engines' steps.

They read the step log, so steps need no recording, and several clients may ask for a trace at the
same time. Only the regions within steps are measured on request.
"""

from __future__ import annotations

import math
import time

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...core.contract.trace import MAX_TRACE_SECONDS
from ...version import __version__
from ..http.errors import APIError
from ..serving.context import AppContext, context_of
from .chrome import chrome_trace

SECONDS = 5.0
LONGEST_SECONDS = MAX_TRACE_SECONDS + 60.0
"""Maximum age of `since`. A client may fetch even the longest trace 60 seconds late."""


async def trace(request: Request) -> Response:
    """Answer with a trace in Chrome's trace-event format: of the last `seconds`, or since the time
    `since`, which POST /debug/trace has returned."""
    now, context = time.monotonic(), context_of(request)
    if "since" in request.query_params:
        since = _number_in(request, "since", "nan")
        if not now - LONGEST_SECONDS <= since <= now:
            raise APIError(400, "since must be the answer of POST /debug/trace", param="since")
    else:
        since = now - _seconds_in(request)
    _check_step_log(context)
    return await _trace(context, since)


async def begin_trace(request: Request) -> Response:
    """Measure the regions of steps for the next `seconds`. Answer with the time at which this
    request arrived, for the `since` of GET /debug/trace."""
    now, context = time.monotonic(), context_of(request)
    seconds = _seconds_in(request)
    _check_step_log(context)
    context.traces.until = max(context.traces.until, now + seconds)
    await _measure(context, now)
    return JSONResponse({"since": now})


async def start_profile(request: Request) -> Response:
    """Note where the trace of the next /stop_profile begins."""
    now, context = time.monotonic(), context_of(request)
    _check_step_log(context)
    if context.traces.profile_began is not None:
        raise APIError(409, "a profile is running: POST /stop_profile ends it")
    context.traces.profile_began = now
    await _measure(context, now)
    return Response()


async def stop_profile(request: Request) -> Response:
    """The time since /start_profile, in Chrome's trace-event format."""
    context = context_of(request)
    began = context.traces.profile_began
    if began is None:
        raise APIError(409, "no profile is running: POST /start_profile starts one")
    answer = await _trace(context, began)
    # After `_trace`: if no engine answers, the profile goes on and the client can stop it again.
    context.traces.profile_began = None
    await _measure(context, time.monotonic())
    return answer


async def _measure(context: AppContext, now: float) -> None:
    """Measure the regions of steps until the last trace that is being taken ends."""
    has_profile = context.traces.profile_began is not None
    seconds = MAX_TRACE_SECONDS if has_profile else max(0.0, context.traces.until - now)
    await context.engine.measure_regions(seconds)


def _seconds_in(request: Request) -> float:
    seconds = _number_in(request, "seconds", f"{SECONDS:g}")
    if not 0 < seconds <= MAX_TRACE_SECONDS:
        given = request.query_params.get("seconds")
        raise APIError(
            400,
            f"seconds must be above 0 and at most {MAX_TRACE_SECONDS:g}, got {given!r}",
            param="seconds",
        )
    return seconds


def _number_in(request: Request, name: str, default: str) -> float:
    try:
        return float(request.query_params.get(name, default))
    except ValueError:
        return math.nan


def _check_step_log(context: AppContext) -> None:
    if not context.engine.config.step_log_size:
        raise APIError(404, "there is no step log: the server runs with --step-log-size 0")


async def _trace(context: AppContext, since: float) -> Response:
    engine = context.engine
    found = await engine.trace(time.monotonic() - since)
    if not found:
        raise APIError(503, "no engine answers: it hangs or is being started", retry_after=5.0)
    facts = {"server": f"tokenmill {__version__}", "model": engine.model_name}
    # Thousands of steps take too long for the event loop.
    text = await to_thread.run_sync(chrome_trace, found, facts)
    return Response(text, media_type="application/json")
