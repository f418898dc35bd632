"""Trains a draft model to expect what the target expects, on the target's own answers.

The loss is the cross-entropy with the target's likeliest tokens (Hinton et al. 2015), at the
temperatures at which most is served. What is measured on answers kept aside is what counts in the
end: how many drafts would be accepted, the sum of min(p, q) (Leviathan et al. 2023).

Shape suffixes: b sequences, l their length, r rows with a target, s likeliest tokens of the target,
d logits of the draft model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...core.interfaces import Progress
from .generation import Answer
from .student import Student

STAGE = "training the draft model"
BATCH_SIZE = 8
_LEARNING_RATE = 1e-3
_LEAST_RATE = 0.05
"""Part of the learning rate at the end."""
_WARM_UP_STEPS = 20
_TEMPERATURES = (1.0,)
MEASURED_TEMPERATURE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some answers, padded, and what is to be learned from them."""

    token_ids_bl: torch.Tensor
    rows_r: torch.Tensor
    """int64: rows of the flattened tokens, each followed by a generated token."""
    likeliest_rs: torch.Tensor
    """int64: index of the logit of each likeliest token; -1: the draft model has none."""
    logprobs_rs: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What part of single drafts the target would accept."""

    sampled: float
    """Rejection sampling at MEASURED_TEMPERATURE."""
    greedy: float


class Lessons:
    """Answers as batches."""

    def __init__(
        self, answers: Sequence[Answer], vocab_size: int, token_ids_d: torch.Tensor | None
    ) -> None:
        self._answers = [answer for answer in answers if len(answer.token_ids)]
        self._logit_of = np.arange(vocab_size)
        if token_ids_d is not None:
            self._logit_of[:] = -1
            self._logit_of[token_ids_d.numpy()] = np.arange(len(token_ids_d))

    def __len__(self) -> int:
        return len(self._answers)

    def shuffled(self, seed: int) -> Iterator[Batch]:
        """Without an end, each answer once before any comes again."""
        noise = np.random.default_rng(seed)
        while True:
            order = noise.permutation(len(self))
            for start in range(0, max(len(self) - BATCH_SIZE, 0) + 1, BATCH_SIZE):
                yield self._batch([self._answers[i] for i in order[start : start + BATCH_SIZE]])

    def in_order(self) -> Iterator[Batch]:
        """Each answer once."""
        for start in range(0, len(self), BATCH_SIZE):
            yield self._batch(self._answers[start : start + BATCH_SIZE])

    def _batch(self, answers: Sequence[Answer]) -> Batch:
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
        likeliest = np.concatenate([a.likeliest_ids for a in answers])
        return Batch(
            token_ids_bl=torch.from_numpy(token_ids_bl),
            rows_r=torch.from_numpy(np.concatenate(rows)),
            likeliest_rs=torch.from_numpy(self._logit_of[likeliest]),
            logprobs_rs=torch.from_numpy(np.concatenate([a.likeliest_logprobs for a in answers])),
        )


def train(
    student: Student, lessons: Lessons, num_steps: int, seed: int, progress: Progress
) -> None:
    """So many steps of AdamW; the same numbers for the same seed and number of threads."""
    parameters = list(student.parameters())
    optimizer = torch.optim.AdamW(
        parameters, lr=_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01
    )
    batches = lessons.shuffled(seed)
    for step in range(num_steps):
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * _schedule(step, num_steps)
        loss = _loss(student, next(batches))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        progress(STAGE, (step + 1) / num_steps)


@torch.no_grad()
def measure(student: Student, lessons: Lessons) -> Acceptance:
    """Acceptance of the first draft after each known token, averaged over all tokens."""
    sampled = greedy = count = 0.0
    for batch in lessons.in_order():
        logits_rd = student.logits(batch.token_ids_bl, batch.rows_r)
        is_known_rs = batch.likeliest_rs >= 0
        p_rs = (batch.logprobs_rs / MEASURED_TEMPERATURE).softmax(dim=1)
        q_rd = (logits_rd / MEASURED_TEMPERATURE).softmax(dim=1)
        q_rs = q_rd.gather(1, batch.likeliest_rs.clamp(min=0)) * is_known_rs
        sampled += float(torch.minimum(p_rs, q_rs).sum())
        greedy += float((logits_rd.argmax(dim=1) == batch.likeliest_rs[:, 0]).sum())
        count += len(batch.rows_r)
    return Acceptance(sampled=sampled / max(count, 1), greedy=greedy / max(count, 1))


def _schedule(step: int, num_steps: int) -> float:
    """A short rise, then half a cosine."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / num_steps))
    return min(1.0, (step + 1) / _WARM_UP_STEPS) * (_LEAST_RATE + (1 - _LEAST_RATE) * cosine)


def _loss(student: Student, batch: Batch) -> torch.Tensor:
    logits_rd = student.logits(batch.token_ids_bl, batch.rows_r)
    is_known_rs = batch.likeliest_rs >= 0
    index_rs = batch.likeliest_rs.clamp(min=0)
    losses = []
    for temperature in _TEMPERATURES:
        p_rs = (batch.logprobs_rs / temperature).exp() * is_known_rs
        p_rs = p_rs / p_rs.sum(dim=1, keepdim=True).clamp(min=1e-9)
        scaled_rd = logits_rd / temperature
        logq_rs = scaled_rd.gather(1, index_rs) - scaled_rd.logsumexp(dim=1, keepdim=True)
        losses.append(-(p_rs * logq_rs).sum(dim=1).mean())
    return torch.stack(losses).mean()
