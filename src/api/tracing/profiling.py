"""Routes that answer with a trace of the engines' steps. They read the step log, so a trace needs
no recording, and several clients may ask for one at the same time."""

from __future__ import annotations

import math
import time

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from ...core.contract.trace import MAX_TRACE_SECONDS
from ...version import __version__
from ..http.errors import APIError
from ..serving.context import AppContext, context_of
from .chrome import chrome_trace

SECONDS = 5.0


async def trace(request: Request) -> Response:
    """The last seconds of each engine, in Chrome's trace-event format."""
    given = request.query_params.get("seconds", str(SECONDS))
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_TRACE_SECONDS:
        raise APIError(
            400,
            f"seconds must be above 0 and at most {MAX_TRACE_SECONDS:g}, got {given!r}",
            param="seconds",
        )
    context = context_of(request)
    _check_step_log(context)
    return await _trace(context, seconds)


async def start_profile(request: Request) -> Response:
    """Note where the trace of the next /stop_profile begins."""
    context = context_of(request)
    _check_step_log(context)
    profile = context.profile
    if profile.began is not None:
        raise APIError(409, "a profile is running: POST /stop_profile ends it")
    profile.began = time.monotonic()
    return Response()


async def stop_profile(request: Request) -> Response:
    """The time since /start_profile, in Chrome's trace-event format."""
    context = context_of(request)
    began = context.profile.began
    if began is None:
        raise APIError(409, "no profile is running: POST /start_profile starts one")
    answer = await _trace(context, time.monotonic() - began)
    context.profile.began = None  # if no engine answered, the client tries again
    return answer


def _check_step_log(context: AppContext) -> None:
    if not context.engine.config.step_log_size:
        raise APIError(404, "there is no step log: the server runs with --step-log-size 0")


async def _trace(context: AppContext, seconds: float) -> Response:
    engine = context.engine
    found = await engine.trace(seconds)
    if not found:
        raise APIError(503, "no engine answers: it hangs or is being started", retry_after=5.0)
    facts = {"server": f"tokenmill {__version__}", "model": engine.model_name}
    # Thousands of steps take too long for the event loop.
    text = await to_thread.run_sync(chrome_trace, found, facts)
    return Response(text, media_type="application/json")
