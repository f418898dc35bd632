"""A linear model of a step's duration, given the step's plan; and the file that stores it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Self

import msgspec

from ..core.errors import ConfigError
from ..core.interfaces import ModelInfo
from ..core.plan import StepPlan

FORMAT = "tokenmill-step-time-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """The features of a step that its duration depends on."""

    num_tokens: int
    num_requests: int
    num_sampled: int
    num_context_tokens: int = 0
    """Tokens whose K and V the decodes read, summed over the decodes."""
    num_attended_pairs: int = 0
    """(query, key) pairs of prompts and chunks of prompts."""
    num_copied_blocks: int = 0
    """KV blocks that are swapped in or out."""

    @classmethod
    def of(cls, plan: StepPlan) -> Self:
        """The work of a plan. A grant of one token counts as a decode, as it does in backends."""
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
    """The weights of the two nearest knots in a linear interpolation, as (index, weight) pairs.

    The weights sum to 1. Beyond the last knot and before the first it is an extrapolation.
    """
    if len(knots) == 1:
        return ((0, 1.0),)
    right = min(max(bisect_right(knots, num_tokens), 1), len(knots) - 1)
    left = right - 1
    fraction = (num_tokens - knots[left]) / (knots[right] - knots[left])
    return ((left, 1.0 - fraction), (right, fraction))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """A step's duration in seconds: piecewise linear in its tokens, plus a few linear terms."""

    tokens: tuple[tuple[int, float], ...]
    """(tokens of the step, seconds), ascending: the part that depends only on their number."""
    per_sampled_token: float = 0.0
    """Seconds to compute the logits of one token and sample it."""
    per_context_token: float = 0.0
    per_attended_pair: float = 0.0
    per_copied_block: float = 0.0
    overhead_per_step: float = 0.0
    """Seconds that the device waits between two steps: commit, plan, hand-over."""
    overhead_per_request: float = 0.0
    """Additional seconds of waiting for each request of the step."""

    def run_seconds(self, work: StepWork) -> float:
        """The predicted duration of the step in the executor."""
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
        """The predicted time from one commit to the next, with the engine loop's overhead."""
        overhead = self.overhead_per_step + self.overhead_per_request * work.num_requests
        return self.run_seconds(work) + overhead


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStep:
    """A measured step that was not used in the fit."""

    name: str
    measured_seconds: float
    predicted_seconds: float

    @property
    def relative_error(self) -> float:
        """The error of the prediction as a fraction of the measured time."""
        return abs(self.predicted_seconds - self.measured_seconds) / self.measured_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The content of a step-time file: a fitted model, and what it was measured on."""

    format: str = FORMAT
    date: str
    machine: Mapping[str, str | int | float]
    model: ModelInfo
    """The measured engine's model. Its KV cache sizes are the planner's defaults."""
    step_time: StepTimeModel
    num_fitted_steps: int
    num_rounds: int
    """Number of measurements of each step; their median counts."""
    median_relative_error: float
    """Median over `checked`."""
    checked: tuple[CheckedStep, ...]
    median_spread: float = 0.0
    """By how much the rounds of a step disagree: the range of their middle half, divided by their
    median; the median over all steps. 0 in files that were written before it was measured."""

    def write(self, path: Path) -> None:
        """Write the file. Raises ConfigError if that fails."""
        content = msgspec.json.format(msgspec.json.encode(self), indent=2)
        try:
            path.write_bytes(content + b"\n")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def read_step_times(path: Path) -> StepTimes:
    """Read a step-time file. Raises ConfigError if it cannot be read, or is no such file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"step-time file {path} cannot be read: {error.strerror}") from error
    return _decode(content, str(path))


def bundled_step_times() -> StepTimes:
    """The step times in this package: of the default model, on one core of a machine
    that differs from the reader's."""
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
            f"{origin} is not a step-time file of this version ({FORMAT}), or has impossible "
            "values: make one with `tokenmill simulate measure`"
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
