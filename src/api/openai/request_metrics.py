"""vLLM's `metrics` object: the times of one request, in its answer."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from ..serving.answers import TokenCounts
from ..serving.context import AppContext


class AnswerMetrics(msgspec.Struct, kw_only=True):
    """Times in milliseconds, with vLLM's names. A time is null if it is not known."""

    time_to_first_token_ms: float | None
    """From the step that first computes the request to its first token, without the queue."""
    generation_time_ms: float | None
    """From the first token to the last one."""
    queue_time_ms: float | None
    """From the arrival in the engine to the first step."""
    mean_itl_ms: float | None
    """Mean time between two tokens; null for a single token."""
    tokens_per_second: float | None
    """From the first step to the last token."""


def answer_metrics(
    context: AppContext, counts: TokenCounts, num_choices: int
) -> AnswerMetrics | UnsetType:
    """The times of a call with one choice, under --enable-per-request-metrics. Several choices have
    no common times, so vLLM leaves them out, too."""
    found = counts.metrics
    if not context.settings.per_request_metrics or num_choices > 1 or found is None:
        return UNSET
    scheduled, first, last = (
        found.first_scheduled_time,
        found.first_token_time,
        found.last_token_time,
    )
    decode_ms = _between(first, last)
    computed_ms = _between(scheduled, last)
    return AnswerMetrics(
        time_to_first_token_ms=_between(scheduled, first),
        generation_time_ms=decode_ms,
        queue_time_ms=_between(found.arrival_time, scheduled),
        mean_itl_ms=(
            None
            if decode_ms is None or counts.completion < 2
            else round(decode_ms / (counts.completion - 1), 3)
        ),
        tokens_per_second=(
            round(1000 * counts.completion / computed_ms, 2) if computed_ms else None
        ),
    )


def _between(start: float | None, end: float | None) -> float | None:
    """Milliseconds between two times, as far as both are known."""
    return None if start is None or end is None else round(1000 * (end - start), 3)
