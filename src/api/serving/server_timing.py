"""The header Server-Timing: where the time of a whole answer went, as browsers show it.

Its format is W3C's (Server Timing). Durations are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from starlette.types import Scope

from ...core.outputs import RequestOutput
from ..http.answer_headers import add_header

HEADER = "server-timing"
PARTS = ("queue", "prefill", "decode")


def show_times(scope: Scope, outputs: Sequence[RequestOutput]) -> None:
    """Add the header for the last outputs of a call's prompts.

    The parts add up to the time from the first prompt's arrival to the end of the last completion.
    The first part ends when a prompt is scheduled, the second with the first token; waiting after a
    preemption counts where it happens. A call without tokens, as for embeddings, has no decode.
    """
    found = [output.metrics for output in outputs if output.metrics is not None]
    end = max((m.finished_time for m in found if m.finished_time is not None), default=None)
    if end is None:
        return
    arrival = min(metrics.arrival_time for metrics in found)
    scheduled = _earliest((metrics.first_scheduled_time for metrics in found), end)
    first_token = _earliest((metrics.first_token_time for metrics in found), end)
    times = (arrival, scheduled, first_token, end)
    durations = (1000 * (after - before) for before, after in pairwise(times))
    parts = (f"{name};dur={ms:.2f}" for name, ms in zip(PARTS, durations, strict=True))
    add_header(scope, HEADER, ", ".join(parts))


def _earliest(times: Iterable[float | None], end: float) -> float:
    return min((time for time in times if time is not None), default=end)
