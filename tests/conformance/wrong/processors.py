"""Wrong logits processors: each makes one mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tokenmill.compute import ProcessedRow, ProcessorSpec
from tokenmill.testing.conformance.computing import logits as suite

from . import fails


class Right:
    """Lowers the logit of the last token."""

    arguments = ("less",)
    example: Mapping[str, Any] = {"less": 2.0}
    allows_drafts = True
    always = False

    @classmethod
    def reasons_against(cls, spec: ProcessorSpec) -> list[str]:
        return []

    @classmethod
    def check(cls, arguments: Mapping[str, Any]) -> None:
        less = arguments["less"]
        if not isinstance(less, float) or not 0 <= less <= 100:
            raise ValueError("less must be a number from 0 to 100")

    def __init__(self, spec: ProcessorSpec) -> None:
        self.num_calls = 0

    def begin(self, arguments: Mapping[str, Any]) -> Any:
        return arguments["less"]

    def apply(self, logits_gv: torch.Tensor, rows: Sequence[ProcessedRow]) -> None:
        for logits_v, row in zip(logits_gv, rows, strict=True):
            logits_v[row.token_ids[-1]] -= row.state


@fails(suite.check_it_says_what_it_reads)
class HasNoExample(Right):
    example: Mapping[str, Any] = {"less": 2.0, "lesss": 1.0}


@fails(suite.check_arguments_are_accepted_or_refused_with_a_value_error)
class TrustsItsArguments(Right):
    @classmethod
    def check(cls, arguments: Mapping[str, Any]) -> None:
        if not 0 <= arguments["less"] <= 100:  # raises TypeError for a text
            raise ValueError("less must be a number from 0 to 100")


@fails(suite.check_a_token_is_left_to_sample)
class LeavesNoToken(Right):
    def apply(self, logits_gv: torch.Tensor, rows: Sequence[ProcessedRow]) -> None:
        for logits_v, row in zip(logits_gv, rows, strict=True):
            if len(row.token_ids) > 200:
                logits_v[:] = -torch.inf


@fails(suite.check_rows_do_not_change_each_other)
class CentersTheCall(Right):
    def apply(self, logits_gv: torch.Tensor, rows: Sequence[ProcessedRow]) -> None:
        logits_gv -= logits_gv.mean()


@fails(suite.check_the_same_tokens_give_the_same_logits)
class CountsCalls(Right):
    def begin(self, arguments: Mapping[str, Any]) -> Any:
        return [0]

    def apply(self, logits_gv: torch.Tensor, rows: Sequence[ProcessedRow]) -> None:
        for logits_v, row in zip(logits_gv, rows, strict=True):
            logits_v[0] -= row.state[0]
            row.state[0] += 1
