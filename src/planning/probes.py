"""Probes: artificial steps to measure, with decodes, a chunk of a prompt, and swapped blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..core.interfaces import ModelInfo
from ..core.plan import BlockCopies, CopyDirection, Grant, RequestStart, StepPlan
from ..core.requests.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One kind of step."""

    # Earlier tokens of a request only count as computed: the time does not depend on their values.
    num_decodes: int = 0
    context: int = 0
    """Number of tokens that each decode attends to."""
    chunk: int = 0
    """Number of prompt tokens that are computed in the same step."""
    chunk_start: int = 0
    """Position of the first of these."""
    num_copies: int = 0
    """Number of blocks that are swapped out."""

    def __str__(self) -> str:
        parts = []
        if self.num_decodes:
            parts.append(f"{self.num_decodes} decodes at {self.context}")
        if self.chunk:
            parts.append(f"{self.chunk} prompt tokens at {self.chunk_start}")
        if self.num_copies:
            parts.append(f"{self.num_copies} blocks swapped")
        return ", ".join(parts)

    def fits(self, info: ModelInfo) -> bool:
        """Whether the model and its KV cache are large enough for this step."""
        size = info.block_size
        blocks = self.num_decodes * (self.context // size + 1)
        blocks += -(-(self.chunk_start + self.chunk) // size)
        blocks *= len(info.kv_windows)
        longest = max(self.context + 1 if self.num_decodes else 0, self.chunk_start + self.chunk)
        return (
            blocks <= info.num_blocks
            and longest <= info.max_model_len
            and self.num_copies <= min(info.num_blocks, info.num_host_blocks)
        )


class PlanMaker:
    """Makes the plans of probes for one executor. Ids and step numbers continue across probes."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._step_id = 0
        self._request_id = 0
        self._ended: tuple[str, ...] = ()
        self._next_block = 0

    def plans(self, probe: Probe) -> Iterator[StepPlan]:
        """The steps of a probe: a step that prepares it, if needed, then the step to measure."""
        self._next_block = 0
        decodes = [self._new_id() for _ in range(probe.num_decodes)]
        ended, self._ended = self._ended, tuple(decodes)
        if decodes:
            starts = [self._start(name, probe.context) for name in decodes]
            grants = [self._grant(name, probe.context - 1, 1, room=1) for name in decodes]
            yield self._plan(ended, starts, grants)
            ended = ()
        starts, grants = [], [self._grant(name, probe.context, 1) for name in decodes]
        if probe.chunk:
            name = self._new_id()
            self._ended += (name,)
            starts = [self._start(name, probe.chunk_start + probe.chunk)]
            grants.append(self._grant(name, probe.chunk_start, probe.chunk, room=0))
        yield self._plan(ended, starts, grants, probe.num_copies)

    def _new_id(self) -> str:
        self._request_id += 1
        return f"probe-{self._request_id}"

    def _start(self, name: str, num_tokens: int) -> RequestStart:
        first = self._request_id % 97
        vocab_size = self._info.vocab_size
        return RequestStart(
            engine_id=name,
            token_ids=tuple((first + 31 * i) % vocab_size for i in range(num_tokens)),
            num_prompt_tokens=num_tokens,
            sampling_params=SamplingParams(temperature=0.0, ignore_eos=True),
            seed=0,
            stop_token_ids=(),
        )

    def _grant(self, name: str, start: int, count: int, *, room: int | None = None) -> Grant:
        """With `room`, the grant brings a new block table, with space for `room` more tokens."""
        blocks: tuple[tuple[int, ...], ...] = ()
        if room is not None:
            num_blocks = -(-(start + count + room) // self._info.block_size)
            blocks = tuple(self._take(num_blocks) for _ in self._info.kv_windows)
        return Grant(
            engine_id=name, start=start, num_tokens=count, new_block_ids=blocks, samples=True
        )

    def _take(self, num_blocks: int) -> tuple[int, ...]:
        first = self._next_block
        self._next_block += num_blocks
        return tuple(range(first, self._next_block))

    def _plan(
        self,
        ended: tuple[str, ...],
        starts: list[RequestStart],
        grants: list[Grant],
        num_copies: int = 0,
    ) -> StepPlan:
        self._step_id += 1
        pairs = tuple((block, block) for block in range(num_copies))
        copies = (BlockCopies(direction=CopyDirection.OUT, pairs=pairs),) if pairs else ()
        return StepPlan(
            step_id=self._step_id,
            ended=ended,
            starts=tuple(starts),
            copies=copies,
            grants=tuple(grants),
        )


def knots_up_to(num_tokens: int) -> tuple[int, ...]:
    """The powers of two below `num_tokens`, and `num_tokens`."""
    powers = [1 << i for i in range(num_tokens.bit_length()) if 1 << i < num_tokens]
    return (*powers, num_tokens)


def probes_to_fit(knots: tuple[int, ...], info: ModelInfo) -> list[Probe]:
    """Steps to fit the model to: prompts at every knot, decodes and chunks with short and long
    contexts, and copies."""
    largest = knots[-1]
    wanted = [Probe(chunk=count) for count in knots]
    wanted += [
        Probe(num_decodes=count, context=context)
        for count in (1, 4, 16, 64)
        for context in (32, 512, 1024)
        if count * context <= 16384
    ]
    wanted += [
        Probe(chunk=max(2, largest // 4), chunk_start=largest),
        Probe(chunk=max(2, largest // 8), chunk_start=2 * largest),
        Probe(num_decodes=8, context=256, chunk=max(2, largest // 4)),
        Probe(num_decodes=1, context=32, num_copies=16),
        Probe(num_decodes=1, context=32, num_copies=64),
    ]
    return [probe for probe in wanted if probe.fits(info)]


def probes_to_check(knots: tuple[int, ...], info: ModelInfo) -> list[Probe]:
    """Steps to check the model with: unlike the fitted ones, and typical of a mixed load."""
    largest = knots[-1]
    wanted = [
        Probe(chunk=max(2, largest * 3 // 16)),
        Probe(chunk=max(2, largest * 3 // 8)),
        Probe(chunk=max(2, largest * 3 // 8), chunk_start=largest // 2),
        Probe(num_decodes=2, context=200),
        Probe(num_decodes=12, context=100),
        Probe(num_decodes=24, context=300),
        Probe(num_decodes=6, context=700),
        Probe(num_decodes=8, context=128, chunk=max(2, largest * 15 // 32)),
        Probe(num_decodes=20, context=200, chunk=max(2, largest // 6), chunk_start=largest // 3),
        Probe(num_decodes=4, context=64, num_copies=32),
    ]
    return [probe for probe in wanted if probe.fits(info)]
