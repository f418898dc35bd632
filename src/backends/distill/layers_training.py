"""Trains a draft model of whole layers, on whole answers, padded to one length.

Shape suffixes: b sequences, l their length, r rows with a target, d logits of the draft model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...core.interfaces import Progress
from .generation import Answer
from .student import Student
from .training import (
    Acceptance,
    Expected,
    LogitIndex,
    distillation_loss,
    in_order,
    measure,
    shuffled,
    train,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """A batch of answers with its labels."""

    token_ids_bl: torch.Tensor
    rows_r: torch.Tensor
    """int64: indices of the flattened tokens that are followed by a generated token."""
    expected: Expected


def train_layers(
    student: Student,
    answers: Sequence[Answer],
    index: LogitIndex,
    num_steps: int,
    seed: int,
    progress: Progress,
) -> None:
    """Train for `num_steps` steps. The same seed and number of threads give the same result."""

    def losses() -> Iterator[torch.Tensor]:
        for texts in shuffled(answers, seed, lambda some: _texts(some, index)):
            logits_rd = student.logits(texts.token_ids_bl, texts.rows_r)
            yield distillation_loss(logits_rd, texts.expected)

    train(list(student.parameters()), losses(), num_steps, progress)


@torch.no_grad()
def measure_layers(student: Student, answers: Sequence[Answer], index: LogitIndex) -> Acceptance:
    """Measure the acceptance of single drafts. See `measure`."""
    batches = (_texts(some, index) for some in in_order(answers))
    return measure((student.logits(b.token_ids_bl, b.rows_r), b.expected) for b in batches)


def _texts(answers: Sequence[Answer], index: LogitIndex) -> Texts:
    # The last token is never an input.
    inputs = [[*a.prompt_ids, *a.token_ids[:-1].tolist()] for a in answers]
    length = max(map(len, inputs))
    token_ids_bl = np.zeros((len(inputs), length), dtype=np.int64)
    for row, token_ids in zip(token_ids_bl, inputs, strict=True):
        row[: len(token_ids)] = token_ids
    rows = [
        np.arange(len(a.token_ids)) + i * length + len(a.prompt_ids) - 1
        for i, a in enumerate(answers)
    ]
    return Texts(
        token_ids_bl=torch.from_numpy(token_ids_bl),
        rows_r=torch.from_numpy(np.concatenate(rows)),
        expected=index.expected(answers),
    )
