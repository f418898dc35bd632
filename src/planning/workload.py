"""The planner's workload: requests with an arrival time, a prompt and a number of tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..core.errors import ConfigError

VOCAB_SIZE = 32_000
"""Vocabulary size of random prompts. Ids matter only to the prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request of a workload."""

    at: float
    """Arrival time in seconds, from the start of the run."""
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    """The number of tokens that it generates: nothing ends it early."""
    priority: int = 0
    cache_salt: str | None = None
    session_id: str | None = None
    """The conversation or tenant that it belongs to, for routers that keep one on one replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticWorkload:
    """Random requests. Fields are those of `vllm bench serve --dataset-name random`.

    Lengths are uniform within `random_range_ratio` of their mean. Every prompt begins with the same
    `random_prefix_len` tokens, in addition to its length. Raises ConfigError for a value out of
    range.
    """

    num_prompts: int = 100
    random_input_len: int = 512
    random_output_len: int = 64
    random_range_ratio: float = 0.0
    random_prefix_len: int = 0
    request_rate: float = 0.3
    """Requests per second; with infinity all arrive at once."""
    burstiness: float = 1.0
    """Shape of the gamma distribution of the gaps: 1 is a Poisson process, less gives bursts."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, lowest in (
            ("num_prompts", 1),
            ("random_input_len", 1),
            ("random_output_len", 1),
            ("random_prefix_len", 0),
        ):
            if getattr(self, name) < lowest:
                raise _wrong(name, f"must be at least {lowest}", getattr(self, name))
        if not 0 <= self.random_range_ratio < 1:
            raise _wrong("random_range_ratio", "must be in [0, 1)", self.random_range_ratio)
        check_arrivals(self.request_rate, self.burstiness)

    def draw(self) -> tuple[PlannedRequest, ...]:
        """The requests in order of arrival. The same seed gives the same requests."""
        rng = random.Random(self.seed)
        prefix = random_tokens(rng, self.random_prefix_len)
        requests = [
            PlannedRequest(
                at=0.0,
                prompt_token_ids=prefix
                + random_tokens(rng, self._length(rng, self.random_input_len)),
                max_tokens=self._length(rng, self.random_output_len),
            )
            for _ in range(self.num_prompts)
        ]
        return let_arrive(requests, self.request_rate, self.burstiness, self.seed)

    def _length(self, rng: random.Random, mean: int) -> int:
        low = math.floor(mean * (1 - self.random_range_ratio))
        high = math.ceil(mean * (1 + self.random_range_ratio))
        return rng.randint(max(1, low), high)


def let_arrive(
    requests: Sequence[PlannedRequest], request_rate: float, burstiness: float, seed: int
) -> tuple[PlannedRequest, ...]:
    """Give the requests arrival times: the first at 0, then with random gaps.

    Raises ConfigError for a rate or burstiness that is not positive.
    """
    check_arrivals(request_rate, burstiness)
    if math.isinf(request_rate):
        return tuple(requests)
    rng = random.Random(f"arrivals {seed}")
    scale = 1 / (request_rate * burstiness)
    at, arrived = 0.0, []
    for request in requests:
        arrived.append(replace(request, at=at))
        at += rng.gammavariate(burstiness, scale)
    return tuple(arrived)


def check_arrivals(request_rate: float, burstiness: float) -> None:
    """Raises ConfigError for a rate or burstiness that is not positive."""
    if not request_rate > 0:
        raise _wrong("request_rate", "must be positive", request_rate)
    if not 0 < burstiness < math.inf:
        raise _wrong("burstiness", "must be positive", burstiness)


def random_tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    """Random token ids. Two prompts of them rarely share a prefix."""
    return tuple(rng.choices(range(VOCAB_SIZE), k=count))


def _wrong(name: str, rule: str, value: object) -> ConfigError:
    return ConfigError(f"--{name.replace('_', '-')} {rule}, got {value}")
