"""Trains a draft head to predict the first tokens after each position.

A head continues from its own states, so training includes this: after a position the head also
predicts the second and third token, given the tokens between. This is done for a fraction of the
positions only, because each later token has the cost of a first one.

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
"""Number of tokens to predict after a place."""
_SHARE = 0.25
"""Fraction of places where more than one token is predicted."""
_WEIGHTS = (1.0, 0.7, 0.5)
"""Weights of the loss by depth: a later token matters only if those before it were right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The places of a batch of answers, concatenated."""

    hidden_pe: torch.Tensor
    """The hidden state that the place's token was sampled from."""
    token_ids_p: torch.Tensor
    expected: Expected
    """The labels of each place."""
    num_after_p: torch.Tensor
    """Number of later places in the same answer."""


def train_head(
    student: HeadStudent,
    answers: Sequence[Answer],
    index: LogitIndex,
    num_steps: int,
    seed: int,
    progress: Progress,
) -> None:
    """Train for `num_steps` steps. The same seed and number of threads give the same result."""
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
    """Measure the acceptance of the head's first tokens. See `measure`."""
    batches = (_places(some, index) for some in in_order(answers))
    return measure(p for places in batches for p in predict(student, places, 1))


def predict(
    student: HeadStudent, places: Places, depth: int, noise: torch.Generator | None = None
) -> Iterator[tuple[torch.Tensor, Expected]]:
    """Yield logits [r, d] and labels of the first, second, ... token after the places.

    Tokens beyond the first are predicted for a random fraction of the places, chosen by `noise`.
    """
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
