"""How long a step takes, by what is in its plan: a small linear model, and its file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Self

import msgspec

from ...core.errors import ConfigError
from ...core.interfaces import ModelInfo
from ...core.plan import StepPlan

FORMAT = "tokenmill-step-time-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What a step's duration depends on."""

    num_tokens: int
    num_requests: int
    num_sampled: int
    num_context_tokens: int = 0
    """Tokens whose KV the decodes read, each decode its own."""
    num_attended_pairs: int = 0
    """(query, key) pairs of prompts and chunks of prompts."""
    num_copied_blocks: int = 0
    """KV blocks that are swapped, in either direction."""

    @classmethod
    def of(cls, plan: StepPlan) -> Self:
        """The work of a plan. A grant of one token is a decode, to backends as well."""
        context = pairs = 0
        for grant in plan.grants:
            if grant.num_tokens == 1:
                context += grant.start + 1
            else:
                n = grant.num_tokens
                pairs += n * grant.start + n * (n + 1) // 2
        return cls(
            num_tokens=plan.num_tokens,
            num_requests=len(plan.grants),
            num_sampled=sum(grant.samples for grant in plan.grants),
            num_context_tokens=context,
            num_attended_pairs=pairs,
            num_copied_blocks=sum(len(copies.pairs) for copies in plan.copies),
        )


def hat_weights(knots: Sequence[int], num_tokens: int) -> tuple[tuple[int, float], ...]:
    """Which two knots a step lies between, and how near it is to each; the weights add up to 1.

    Beyond the last knot (and before the first) the nearest two go on as a straight line.
    """
    if len(knots) == 1:
        return ((0, 1.0),)
    right = min(max(bisect_right(knots, num_tokens), 1), len(knots) - 1)
    left = right - 1
    part = (num_tokens - knots[left]) / (knots[right] - knots[left])
    return ((left, 1.0 - part), (right, part))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """Seconds of a step: a piecewise-linear function of its tokens, and a few linear terms."""

    tokens: tuple[tuple[int, float], ...]
    """(tokens of the step, seconds), ascending: all that depends on the number of tokens alone."""
    per_sampled_token: float = 0.0
    """Seconds for the logits and the choice of one token."""
    per_context_token: float = 0.0
    per_attended_pair: float = 0.0
    per_copied_block: float = 0.0
    overhead_per_step: float = 0.0
    """Seconds that the device waits between two steps: commit, plan, hand-over."""
    overhead_per_request: float = 0.0
    """As much more for each request of the step."""

    def run_seconds(self, work: StepWork) -> float:
        """What the executor takes."""
        knots = [count for count, _ in self.tokens]
        seconds = sum(
            weight * self.tokens[index][1] for index, weight in hat_weights(knots, work.num_tokens)
        )
        return (
            max(0.0, seconds)
            + self.per_sampled_token * work.num_sampled
            + self.per_context_token * work.num_context_tokens
            + self.per_attended_pair * work.num_attended_pairs
            + self.per_copied_block * work.num_copied_blocks
        )

    def step_seconds(self, work: StepWork) -> float:
        """From one commit to the next: the executor's part, and the engine loop's."""
        overhead = self.overhead_per_step + self.overhead_per_request * work.num_requests
        return self.run_seconds(work) + overhead


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStep:
    """A step that was measured and not used for the fit."""

    name: str
    measured_seconds: float
    predicted_seconds: float

    @property
    def relative_error(self) -> float:
        """Of the prediction, as a part of what was measured."""
        return abs(self.predicted_seconds - self.measured_seconds) / self.measured_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """A measured step-time model, and of what: the content of a step-time file."""

    format: str = FORMAT
    date: str
    machine: Mapping[str, str | int | float]
    model: ModelInfo
    """Of the measured engine; sizes of the KV cache are where the planner takes its own from."""
    step_time: StepTimeModel
    num_fitted_steps: int
    num_rounds: int
    """How often each step was measured; the median counts."""
    median_relative_error: float
    """Over `checked`."""
    checked: tuple[CheckedStep, ...]

    def write(self, path: Path) -> None:
        """Raises ConfigError where nothing can be written."""
        content = msgspec.json.format(msgspec.json.encode(self), indent=2)
        try:
            path.write_bytes(content + b"\n")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def read_step_times(path: Path) -> StepTimes:
    """Raises ConfigError for a file that cannot be read or is not a step-time file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"step-time file {path} cannot be read: {error.strerror}") from error
    return _decode(content, str(path))


def bundled_step_times() -> StepTimes:
    """Of the embedded default model, on one core of a machine that is not the reader's."""
    return _decode((files(__package__) / "step-time.json").read_bytes(), "the bundled step times")


def _decode(content: bytes, origin: str) -> StepTimes:
    try:
        found = msgspec.json.decode(content, type=StepTimes)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{origin} is not a step-time file: {error}; make one with `tokenmill simulate measure`"
        ) from error
    if not _is_sound(found):
        raise ConfigError(
            f"{origin} is not a step-time file of this version ({FORMAT}), or its numbers cannot "
            "be: make one with `tokenmill simulate measure`"
        )
    return found


def _is_sound(found: StepTimes) -> bool:
    model, info = found.step_time, found.model
    counts = [count for count, _ in model.tokens]
    seconds = [seconds for _, seconds in model.tokens]
    seconds += [getattr(model, name) for name in model.__slots__ if name != "tokens"]
    return (
        found.format == FORMAT
        and counts == sorted(set(counts))
        and counts[:1] > [0]
        and min(seconds) >= 0
        and info.kv_bytes_per_block >= info.block_size >= 1
        and min(info.num_blocks, info.max_model_len) >= 1
    )
