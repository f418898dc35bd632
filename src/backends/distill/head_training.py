"""Trains a draft head: single places, and a few tokens onwards from each.

A head goes on from its own states, so it must learn to: after every place it is also asked for the
second and third token, given the tokens between. Places of these are a part only, as each costs as
much as a first one.

Shape suffixes: p places (generated tokens), r rows, e hidden size, d logits of the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from ...core.interfaces import Progress
from .generation import Answer
from .head_student import HeadStudent, hidden_of
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

DEPTH = 3
"""Tokens that are guessed onwards."""
_SHARE = 0.25
"""Of the places, those that are followed further."""
_WEIGHTS = (1.0, 0.7, 0.5)
"""Of the loss, by depth: later tokens matter if those before them were right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Those of some answers, one after the other."""

    hidden_pe: torch.Tensor
    """What chose the token of the place."""
    token_ids_p: torch.Tensor
    expected: Expected
    """What the target expected at the place."""
    num_after_p: torch.Tensor
    """Places of the same answer that come after it."""


def train_head(
    student: HeadStudent,
    answers: Sequence[Answer],
    index: LogitIndex,
    num_steps: int,
    seed: int,
    progress: Progress,
) -> None:
    """So many steps; the same numbers for the same seed and number of threads."""
    noise = torch.Generator().manual_seed(seed)

    def losses() -> Iterator[torch.Tensor]:
        for places in shuffled(answers, seed, lambda some: _places(some, index)):
            predictions = predict(student, places, DEPTH, noise)
            yield torch.stack(
                [
                    weight * distillation_loss(logits_rd, expected)
                    for weight, (logits_rd, expected) in zip(_WEIGHTS, predictions, strict=False)
                ]
            ).sum()

    train(list(student.weights.values()), losses(), num_steps, progress)


@torch.no_grad()
def measure_head(student: HeadStudent, answers: Sequence[Answer], index: LogitIndex) -> Acceptance:
    """See `measure`."""
    lessons = (_places(some, index) for some in in_order(answers))
    return measure(p for places in lessons for p in predict(student, places, 1))


def predict(
    student: HeadStudent, places: Places, depth: int, noise: torch.Generator | None = None
) -> Iterator[tuple[torch.Tensor, Expected]]:
    """Logits [r, d] and what the target expected, for the first, second, ... token after the places;
    beyond the first, of a part of the places that `noise` chooses."""
    (place_r,) = places.num_after_p.nonzero(as_tuple=True)
    state_re = places.hidden_pe[place_r].float()
    for step in range(depth):
        if step:
            is_kept_r = places.num_after_p[place_r] > step
            if step == 1:
                is_kept_r &= torch.rand(len(place_r), generator=noise) < _SHARE
            place_r, state_re = place_r[is_kept_r], state_re[is_kept_r]
        if not len(place_r):
            return
        with student.autocast():
            token_ids_r = places.token_ids_p[place_r + step]
            state_re = student.head.advance(
                state_re, F.embedding(token_ids_r, student.embedding_ve)
            )
            logits_rd = student.head.logits(state_re)
        following_r = place_r + step + 1
        yield (
            logits_rd,
            Expected(
                likeliest_rs=places.expected.likeliest_rs[following_r],
                logprobs_rs=places.expected.logprobs_rs[following_r],
            ),
        )


def _places(answers: Sequence[Answer], index: LogitIndex) -> Places:
    after = [np.arange(len(a.token_ids))[::-1] for a in answers]
    token_ids = np.concatenate([a.token_ids for a in answers]).astype(np.int64)
    return Places(
        hidden_pe=torch.cat([hidden_of(a) for a in answers]),
        token_ids_p=torch.from_numpy(token_ids),
        expected=index.expected(answers),
        num_after_p=torch.from_numpy(np.concatenate(after)),
    )
