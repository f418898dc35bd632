"""Calls logits processors, and contains their failures.

Shape suffixes: r sampled rows, g rows that a processor changes, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ....core.errors import CONTAINED, ConfigError
from ....core.host.calling.guard import Guard
from ....core.host.logits_processors import LogitsProcessors
from ..batch import Row
from .base import LogitsProcessor, ProcessedRow, ProcessorSpec

IndexedRow = tuple[int, Row]
"""A row and its index among the sampled rows."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """A processor, and the guard that calls its `apply`."""

    name: str
    processor: LogitsProcessor
    guard: Guard


class LogitsProcessing:
    """The processors of one model. Raises ConfigError if one cannot serve it."""

    def __init__(self, found: LogitsProcessors, spec: ProcessorSpec) -> None:
        self._processors: list[_Watched] = []
        for name, made in found.classes.items():
            kind: Any = made  # the class of a LogitsProcessor
            reasons = kind.reasons_against(spec)
            if reasons:
                raise ConfigError(
                    f"the logits processor {name!r} cannot serve this model: {'; '.join(reasons)}"
                )
            processor: LogitsProcessor = kind(spec)
            guard = found.watch(name, processor.apply)
            self._processors.append(_Watched(name, processor, guard))

    def apply(self, logits_rv: torch.Tensor, rows: Sequence[IndexedRow]) -> dict[int, str]:
        """Change the logits of the rows whose requests use processors.

        Returns, by row, why it could not be done. The logits of such a row become 0.
        """
        failures: dict[int, str] = {}
        for watched in self._processors:
            used = [one for one in rows if _uses(one, watched.name) and one[0] not in failures]
            if used:
                failures |= _call(watched, logits_rv, used)
        for index in failures:
            logits_rv[index] = 0.0
        return failures


def _uses(row: IndexedRow, name: str) -> bool:
    return name in row[1].state.start.logits_processors


def _call(watched: _Watched, logits_rv: torch.Tensor, rows: Sequence[IndexedRow]) -> dict[int, str]:
    """Call a processor for all rows together or, if that fails, for each row alone."""
    try:
        _process(watched, logits_rv, rows)
    except CONTAINED as error:
        if len(rows) > 1:
            failures: dict[int, str] = {}
            for one in rows:
                failures |= _call(watched, logits_rv, [one])
            return failures
        watched.guard.fail(error)
        return {rows[0][0]: f"the logits processor {watched.name!r} failed for this request"}
    return {}


def _process(watched: _Watched, logits_rv: torch.Tensor, rows: Sequence[IndexedRow]) -> None:
    """Let the processor change a copy of the rows, so that one that fails changes nothing."""
    index_g = torch.tensor([index for index, _ in rows], device=logits_rv.device)
    logits_gv = logits_rv.index_select(0, index_g)
    views = [watched.guard.resume(_view, watched, row) for _, row in rows]
    watched.guard.call(logits_gv, views)
    if not logits_gv.amax(dim=1).isfinite().all():
        raise ValueError("it left no token, or made a logit NaN or infinite")
    logits_rv[index_g] = logits_gv


def _view(watched: _Watched, row: Row) -> ProcessedRow:
    name, processor, state = watched.name, watched.processor, row.state
    if name not in state.processor_states:
        given = state.start.sampling_params.extra_args or {}
        arguments = {one: given[one] for one in processor.arguments if one in given}
        state.processor_states[name] = processor.begin(arguments)
    drafts = state.draft_token_ids[: row.num_drafts_before]
    return ProcessedRow(
        state=state.processor_states[name],
        token_ids=[*state.token_ids, *drafts] if drafts else state.token_ids,
        num_prompt_tokens=state.start.num_prompt_tokens,
    )
