"""Random requests, the same in every run, and the sizes of the engines that serve them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from ....core.requests.request_options import NO_METADATA

VOCAB_SIZE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    name: str = "engine"
    num_blocks: int = 256
    num_host_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 6
    max_num_batched_tokens: int = 24
    max_inflight: int = 1
    vocab_size: int = VOCAB_SIZE
    num_speculative_tokens: int = 5
    """Maximum number of draft tokens per request, if a speculative method is tested."""

    def __str__(self) -> str:
        return self.name


AMPLE = EngineShape(name="ample")
AMPLE_TWO = EngineShape(name="ample-two-plans", max_inflight=2)
STARVED = EngineShape(name="starved", num_blocks=12, num_host_blocks=6)
STARVED_TWO = EngineShape(
    name="starved-two-plans", num_blocks=12, num_host_blocks=6, max_inflight=2
)
NO_HOST_ROOM = EngineShape(name="starved-no-host-room", num_blocks=12, num_host_blocks=0)
SHAPES = (AMPLE, AMPLE_TWO, STARVED, STARVED_TWO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request; `at` is the turn of the engine in which it arrives."""

    at: int = 0
    prompt: tuple[int, ...]
    max_tokens: int
    api_key_id: str | None = None
    metadata: Mapping[str, str] = NO_METADATA


def random_jobs(num_jobs: int) -> list[Job]:
    """Requests in bursts, with pauses. Half of the prompts share a beginning.

    Each request fits into every shape.
    """
    rng = random.Random(1)
    prefixes = [_tokens(rng, 9) for _ in range(3)]
    at, jobs = 0, []
    for _ in range(num_jobs):
        at += rng.choice((0, 0, 0, 1, 1, 2, 6))
        prefix = rng.choice(prefixes) if rng.random() < 0.5 else ()
        prompt = prefix + _tokens(rng, rng.randint(1, 15))
        jobs.append(Job(at=at, prompt=prompt, max_tokens=rng.randint(1, 12)))
    return jobs


def random_job(rng: random.Random, num_prompt_tokens: int, max_tokens: int) -> Job:
    """A request of this size with a random prompt."""
    return Job(prompt=_tokens(rng, num_prompt_tokens), max_tokens=max_tokens)


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCAB_SIZE) for _ in range(count))
