"""Counts what the log says of each request: tokens, times and its error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import Scope

from ....core.outputs import RequestMetrics, RequestOutput

MAX_TEXT = 160
"""Characters of a path and of an error message that are logged."""
CLIENT_LEFT = 499
"""The status in the log of an answer that was not sent to its end, as in nginx's log: the client
left, or the server stopped."""
_STATE = "answer_stats"


@dataclass(slots=True)
class AnswerStats:
    """Tokens and times of the engine's requests of one HTTP call."""

    num_prompt_tokens: int = 0
    num_generated: int = 0
    first: RequestMetrics | None = None
    """The metrics of the first output."""
    latest: RequestMetrics | None = None
    error: str | None = None
    """The message of the error that the client got."""

    def count(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            self.latest = output.metrics
            self.first = self.first or output.metrics
            for choice in output.outputs:
                self.num_generated += len(choice.token_ids)

    def fields(self) -> dict[str, object]:
        """Fields of the event `request`. Times are the engine's: they do not have the time in which
        the server reads the request."""
        found: dict[str, object] = {}
        if self.num_prompt_tokens:
            found["prompt_tokens"] = self.num_prompt_tokens
            found["completion_tokens"] = self.num_generated
        if self.first and self.latest and (begin := self.first.first_token_time) is not None:
            found["ttft"] = round(begin - self.first.arrival_time, 4)
            seconds = (self.latest.last_token_time or begin) - begin
            if seconds > 0:
                found["tokens_per_second"] = round((self.num_generated - 1) / seconds, 1)
        if self.error is not None:
            found["error"] = self.error[:MAX_TEXT]
        return found


def answer_stats(scope: Scope) -> AnswerStats:
    """The counts of this HTTP call, which are made when they are first needed."""
    found: AnswerStats = scope.setdefault("state", {}).setdefault(_STATE, AnswerStats())
    return found
