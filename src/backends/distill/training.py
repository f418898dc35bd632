"""Trains a draft model to match the target's distributions, on the target's own answers.

The loss is the cross-entropy with the target's likeliest tokens (Hinton et al. 2015). The measure,
on held-out answers, is the fraction of drafts that would be accepted: the sum of min(p, q)
(Leviathan et al. 2023).

Shape suffixes: r rows with a label, s likeliest tokens of the target, d logits of the draft model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ...core.interfaces import Progress
from .generation import Answer

STAGE = "training the draft model"
BATCH_SIZE = 8
"""Answers per training step."""
_LEARNING_RATE = 1e-3
_LEAST_RATE = 0.05
"""The learning rate at the end, as a fraction of the maximum."""
_WARM_UP_STEPS = 20
MEASURED_TEMPERATURE = 0.7
_Batch = TypeVar("_Batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The target's likeliest tokens and their log-probabilities: the labels of training."""

    likeliest_rs: torch.Tensor
    """int64: the draft model's logit index of each likeliest token; -1 if it has no such logit."""
    logprobs_rs: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The fraction of single-token drafts that the target would accept."""

    num_measured: int
    """Number of drafts."""
    sampled: float
    """The fraction with rejection sampling at MEASURED_TEMPERATURE."""
    greedy: float
    """The fraction with greedy sampling."""


class LogitIndex:
    """Maps token ids to logit indices of a draft model."""

    def __init__(self, vocab_size: int, token_ids_d: torch.Tensor | None) -> None:
        self._logit_of = np.arange(vocab_size)
        if token_ids_d is not None:
            self._logit_of[:] = -1
            self._logit_of[token_ids_d.numpy()] = np.arange(len(token_ids_d))

    def expected(self, answers: Sequence[Answer]) -> Expected:
        """The labels of every generated token of these answers, concatenated."""
        likeliest = np.concatenate([a.likeliest_ids for a in answers])
        return Expected(
            likeliest_rs=torch.from_numpy(self._logit_of[likeliest]),
            logprobs_rs=torch.from_numpy(np.concatenate([a.likeliest_logprobs for a in answers])),
        )


def shuffled(
    answers: Sequence[Answer], seed: int, make: Callable[[list[Answer]], _Batch]
) -> Iterator[_Batch]:
    """Endless batches made by `make`, in random order: every answer is used before any repeats."""
    noise = np.random.default_rng(seed)
    while True:
        order: npt.NDArray[np.int64] = noise.permutation(len(answers))
        for start in range(0, max(len(answers) - BATCH_SIZE, 0) + 1, BATCH_SIZE):
            yield make([answers[i] for i in order[start : start + BATCH_SIZE]])


def in_order(answers: Sequence[Answer]) -> Iterator[Sequence[Answer]]:
    """All answers once, in batches of BATCH_SIZE."""
    for start in range(0, len(answers), BATCH_SIZE):
        yield answers[start : start + BATCH_SIZE]


def train(
    parameters: Sequence[torch.Tensor],
    losses: Iterator[torch.Tensor],
    num_steps: int,
    progress: Progress,
) -> None:
    """Train for `num_steps` steps of AdamW, one loss per step. The result is the same for the same
    losses and number of threads."""
    optimizer = torch.optim.AdamW(
        parameters, lr=_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01
    )
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * _schedule(step, num_steps)
        loss = next(losses)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        progress(STAGE, (step + 1) / num_steps)


def distillation_loss(logits_rd: torch.Tensor, expected: Expected) -> torch.Tensor:
    """Cross-entropy, averaged over the rows."""
    is_known_rs = expected.likeliest_rs >= 0
    p_rs = expected.logprobs_rs.exp() * is_known_rs
    p_rs = p_rs / p_rs.sum(dim=1, keepdim=True).clamp(min=1e-9)
    logits_rs = logits_rd.gather(1, expected.likeliest_rs.clamp(min=0))
    return -(p_rs * (logits_rs - logits_rd.logsumexp(dim=1, keepdim=True))).sum(dim=1).mean()


def measure(predictions: Iterable[tuple[torch.Tensor, Expected]]) -> Acceptance:
    """Measure the acceptance of single drafts, averaged over all rows. `predictions` are pairs of
    logits [r, d] and labels."""
    sampled = greedy = 0.0
    count = 0
    for logits_rd, expected in predictions:
        is_known_rs = expected.likeliest_rs >= 0
        p_rs = (expected.logprobs_rs / MEASURED_TEMPERATURE).softmax(dim=1)
        q_rd = (logits_rd / MEASURED_TEMPERATURE).softmax(dim=1)
        q_rs = q_rd.gather(1, expected.likeliest_rs.clamp(min=0)) * is_known_rs
        sampled += float(torch.minimum(p_rs, q_rs).sum())
        greedy += float((logits_rd.argmax(dim=1) == expected.likeliest_rs[:, 0]).sum())
        count += len(logits_rd)
    return Acceptance(
        num_measured=count, sampled=sampled / max(count, 1), greedy=greedy / max(count, 1)
    )


def _schedule(step: int, num_steps: int) -> float:
    """A short linear warm-up, then half a cosine."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / num_steps))
    return min(1.0, (step + 1) / _WARM_UP_STEPS) * (_LEAST_RATE + (1 - _LEAST_RATE) * cosine)
