"""Limits the reasoning of a chat, by the argument of a logits processor."""

from __future__ import annotations

from ...core.contract.providers.logits_processor import THINKING_BUDGET
from ...core.host.answer_parsers import AnswerParsers
from ...core.interfaces import Tokenizer
from ...core.sampling_params import SamplingParams
from ..http.errors import APIError

_FIELD = "thinking_token_budget"


def with_thinking_budget(
    params: SamplingParams,
    budget: int | None,
    parsers: AnswerParsers,
    prompt_end: str,
    tokenizer: Tokenizer,
) -> SamplingParams:
    """The parameters with a limit of the reasoning. `prompt_end` may have opened it.

    Raises APIError (400) if the model's reasoning has no end that the server knows.
    """
    if budget is None or budget < 0:
        return params
    marks = reasoning_marks(parsers)
    if marks is None:
        raise APIError(
            400,
            f"{_FIELD} needs a reasoning parser with marks, and this server has none; leave it "
            "out, or start the server with --reasoning-parser NAME",
            param=_FIELD,
            code="unsupported",
        )
    start, end = (tokenizer.encode(mark, add_special_tokens=False) for mark in marks)
    if params.allowed_token_ids is not None and not set(end) <= set(params.allowed_token_ids):
        raise APIError(
            400, f"{_FIELD} needs {marks[1]!r} in allowed_token_ids", param="allowed_token_ids"
        )
    is_open = prompt_end.rstrip().endswith(marks[0])
    limit = {"max_tokens": budget, "start": start, "end": end, "is_open": is_open}
    return params.with_changes(extra_args={**(params.extra_args or {}), THINKING_BUDGET: limit})


def reasoning_marks(parsers: AnswerParsers) -> tuple[str, str] | None:
    """The texts around the reasoning of the served model; None: it has none that is known."""
    return parsers.reasoning.marks if parsers.reasoning is not None else None
