"""The stages of a model in worker processes: each sends its hidden states to the next one.

Shape suffixes: t tokens, e hidden size, b bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist

from ....core.interfaces import Computation, Executor, ModelInfo
from ....core.members import TAKE_MEDIA
from ....core.plan import StepPlan, StepResult
from ....core.requests.media import MediaItem
from .group import connection

FAILED = -1
"""Sent instead of the number of bytes by a stage that failed. All later stages hand it on."""


class EarlierStageError(RuntimeError):
    """An earlier stage failed. Its own error says why."""


class StageLink:
    """Sends hidden states to the rank of the next stage, and receives those of the stage before.

    For each plan, it receives and sends one message, even if the step raises.
    """

    def __init__(self, previous: int | None, following: int | None, device: torch.device) -> None:
        """`previous`, `following`: ranks; None: there is no such stage. `device`: of the hidden
        states."""
        self._previous, self._following = previous, following
        self._device = device
        self._has_received = self._has_sent = True
        self._sending: list[tuple[dist.Work, torch.Tensor]] = []
        """Messages on their way; their memory must not be freed before they have been sent."""
        self.received_at = 0.0
        """When the states of this plan were there; a time of the monotonic clock."""

    @contextmanager
    def step(self) -> Iterator[None]:
        """Surrounds the computation of one plan."""
        self._has_received, self._has_sent = self._previous is None, self._following is None
        self.received_at = time.monotonic()
        try:
            yield
        finally:
            if not self._has_received:
                self._receive_bytes()
            if not self._has_sent:
                self._send_bytes(torch.empty(0), FAILED)

    def receive(self, num_tokens: int, hidden_size: int, dtype: torch.dtype) -> torch.Tensor:
        received_b = self._receive_bytes()
        if received_b is None:
            raise EarlierStageError("an earlier stage failed")
        return received_b.view(dtype).view(num_tokens, hidden_size)

    def send(self, hidden_te: torch.Tensor) -> None:
        sent_b = hidden_te.contiguous().view(-1).view(torch.uint8)
        self._send_bytes(sent_b, len(sent_b))

    def _receive_bytes(self) -> torch.Tensor | None:
        """The message of the stage before; None if it failed."""
        self._has_received = True
        size = torch.empty(1, dtype=torch.int64)
        with connection():
            dist.recv(size, self._previous)
        if size.item() == FAILED:
            return None
        received_b = torch.empty(int(size), dtype=torch.uint8, device=self._device)
        with connection():
            dist.recv(received_b, self._previous)
        self.received_at = time.monotonic()
        return received_b

    def _send_bytes(self, sent_b: torch.Tensor, size: int) -> None:
        self._has_sent = True
        messages = [torch.tensor([size]), *([sent_b] if size >= 0 else [])]
        with connection():
            for work, _ in self._sending:
                work.wait()
            works = [dist.isend(message, self._following) for message in messages]
        self._sending = [
            (work, message)
            for work, message in zip(works, messages, strict=True)
            if work is not None
        ]


class StageExecutor:
    """Computes plans in one stage of a model."""

    def __init__(self, inner: Executor, link: StageLink) -> None:
        self.info: ModelInfo = inner.info
        self._inner = inner
        self._link = link

    def launch(self, plan: StepPlan) -> Computation:
        return Computation(self._run, plan)

    def take_media(self, items: Sequence[MediaItem]) -> None:
        TAKE_MEDIA.of(self._inner)(items)

    def health(self) -> None:
        """Always None."""

    def close(self) -> None:
        """Free weights and KV cache."""
        self._inner.close()

    def _run(self, plan: StepPlan) -> StepResult:
        with self._link.step():
            result = self._inner.launch(plan).result()
        # Not the time in which it waited for the stage before.
        times = self._link.received_at, time.monotonic()
        return replace(result, rank_times=(times,))
