"""Generates training data: the target's answers, with its likeliest tokens at every position.

The target samples a fixed number of answers at a time, each in its own KV blocks.

Shape suffixes: t generated tokens, s likeliest tokens, e hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np
import numpy.typing as npt
import torch

from ...core.errors import ConfigError
from ...core.interfaces import Executor, Progress
from ...core.plan import Grant, RequestStart, StepPlan, StepResult, TokenLogprobs
from ...core.requests.sampling_params import SamplingParams
from .recording import HiddenRecorder

STAGE = "generating the target's text"
NUM_LIKELIEST = 20
_TEMPERATURES = (0.6, 0.8, 1.0)
"""Used in turn: typical temperatures of chats, and some variety."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A prompt, and the target's answer to it."""

    prompt_ids: tuple[int, ...]
    token_ids: npt.NDArray[np.int32]
    """[t]."""
    likeliest_ids: npt.NDArray[np.int32]
    """[t, s]: the likeliest tokens at each position, in descending order."""
    likeliest_logprobs: npt.NDArray[np.float32]
    """[t, s], before temperature."""
    hidden_te: torch.Tensor | None = None
    """The hidden state that each token was sampled from; None if they were not recorded."""


@dataclass(slots=True, kw_only=True)
class _Running:
    engine_id: str
    slot: int
    prompt_ids: tuple[int, ...]
    temperature: float
    token_ids: list[int] = field(default_factory=list)
    places: list[TokenLogprobs] = field(default_factory=list)


class Generator:
    """Lets the target answer prompts, `num_slots` at a time."""

    def __init__(
        self,
        executor: Executor,
        *,
        num_blocks: int,
        block_size: int,
        stop_token_ids: Sequence[int],
        max_len: int,
        num_slots: int,
        seed: int,
        recorder: HiddenRecorder | None = None,
    ) -> None:
        """`max_len` is the maximum length of a prompt with its answer, in tokens. `recorder` is the
        executor's speculator, if hidden states are to be recorded.

        Raises ConfigError if the blocks do not hold one answer.
        """
        self._num_groups = len(executor.info.kv_windows)
        self._table_len = -(-max_len // block_size)
        self._blocks_each = self._num_groups * self._table_len
        if num_blocks < self._blocks_each:
            raise ConfigError(
                f"{num_blocks} KV blocks do not hold an answer of {max_len} tokens: give the KV "
                "cache more memory"
            )
        self._executor = executor
        self._num_slots = min(num_slots, num_blocks // self._blocks_each)
        self._stops = frozenset(stop_token_ids)
        self._max_len = max_len
        self._seed = seed
        self._recorder = recorder
        self._step_id = 0
        self._num_started = 0

    def answers(
        self, prompts: Sequence[Sequence[int]], num_tokens: int, progress: Progress
    ) -> list[Answer]:
        """Generate answers until they have `num_tokens` tokens. Prompts repeat as often as needed.

        Raises ConfigError if no prompt is short enough to be answered.
        """
        short = [tuple(prompt) for prompt in prompts if 0 < len(prompt) < self._max_len]
        if not short:
            raise ConfigError(
                f"no prompt has from 1 to {self._max_len - 1} tokens: give other prompts"
            )
        waiting = cycle(short)
        running: dict[int, _Running] = {}
        done: list[Answer] = []
        ended: list[str] = []
        count = 0
        while count < num_tokens:
            fresh = self._take(waiting, running)
            count += len(running)
            result = self._executor.launch(self._plan(running, fresh, ended)).result()
            finished = self._finished(running, result)
            ended = [one.engine_id for one in finished]
            done += [self._as_answer(running.pop(one.slot)) for one in finished]
            progress(STAGE, min(count / num_tokens, 1.0))
        last = self._plan({}, [], [*ended, *(r.engine_id for r in running.values())])
        self._executor.launch(last).result()
        return done + [self._as_answer(one) for one in running.values()]

    def _take(
        self, waiting: Iterator[tuple[int, ...]], running: dict[int, _Running]
    ) -> list[_Running]:
        fresh = []
        for slot in range(self._num_slots):
            if slot in running:
                continue
            number = self._num_started
            self._num_started += 1
            running[slot] = _Running(
                engine_id=str(number),
                slot=slot,
                prompt_ids=next(waiting),
                temperature=_TEMPERATURES[number % len(_TEMPERATURES)],
            )
            fresh.append(running[slot])
        return fresh

    def _plan(
        self, running: dict[int, _Running], fresh: Sequence[_Running], ended: Sequence[str]
    ) -> StepPlan:
        self._step_id += 1
        return StepPlan(
            step_id=self._step_id,
            ended=tuple(ended),
            starts=tuple(self._start(one) for one in fresh),
            grants=tuple(self._grant(one) for one in running.values()),
        )

    def _start(self, one: _Running) -> RequestStart:
        return RequestStart(
            engine_id=one.engine_id,
            token_ids=one.prompt_ids,
            num_prompt_tokens=len(one.prompt_ids),
            sampling_params=SamplingParams(
                temperature=one.temperature, logprobs=NUM_LIKELIEST, max_tokens=self._max_len
            ),
            seed=self._seed + int(one.engine_id),
            stop_token_ids=(),
        )

    def _grant(self, one: _Running) -> Grant:
        is_new = not one.token_ids
        return Grant(
            engine_id=one.engine_id,
            start=0 if is_new else len(one.prompt_ids) + len(one.token_ids) - 1,
            num_tokens=len(one.prompt_ids) if is_new else 1,
            new_block_ids=self._blocks_of(one.slot) if is_new else (),
            samples=True,
            max_draft_tokens=0 if self._recorder is None else 1,
        )

    def _blocks_of(self, slot: int) -> tuple[tuple[int, ...], ...]:
        """The blocks of each group of layers."""
        begin, size = slot * self._blocks_each, self._table_len
        firsts = range(begin, begin + self._blocks_each, size)
        return tuple(tuple(range(first, first + size)) for first in firsts)

    def _finished(self, running: dict[int, _Running], result: StepResult) -> list[_Running]:
        """Append the step's tokens; returns the requests that are complete."""
        assert result.logprobs is not None
        finished = []
        for one, token_ids, logprobs in zip(
            running.values(), result.token_ids, result.logprobs, strict=True
        ):
            one.token_ids += token_ids
            one.places += logprobs
            length = len(one.prompt_ids) + len(one.token_ids)
            if not token_ids or token_ids[-1] in self._stops or length == self._max_len:
                finished.append(one)
        return finished

    def _as_answer(self, one: _Running) -> Answer:
        recorder = self._recorder
        return Answer(
            prompt_ids=one.prompt_ids,
            token_ids=np.array(one.token_ids, dtype=np.int32),
            likeliest_ids=np.array([[i for i, _ in p.top] for p in one.places], dtype=np.int32),
            likeliest_logprobs=np.array(
                [[x for _, x in p.top] for p in one.places], dtype=np.float32
            ),
            hidden_te=None if recorder is None else recorder.take(one.engine_id),
        )
