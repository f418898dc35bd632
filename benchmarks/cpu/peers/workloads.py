"""The workloads of all engines: the same token ids and lengths, greedy, without an early end.

This module runs in every engine's environment, so it uses the standard library only.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

MIXED = Path(__file__).with_name("mixed.json")
"""32 requests of many lengths, submitted at once: 7802 tokens in, 3994 out."""


@dataclass(frozen=True)
class Request:
    """One prompt, and the number of tokens to generate."""

    prompt_token_ids: list[int]
    max_tokens: int


def uniform(batch: int, num_prompt_tokens: int, max_tokens: int, seed: int = 0) -> list[Request]:
    """Random prompts of one length. They share no prefix, so a prefix cache does not help."""
    rng = random.Random(f"{seed} {batch} {num_prompt_tokens}")
    return [
        Request([rng.randrange(300, 40000) for _ in range(num_prompt_tokens)], max_tokens)
        for _ in range(batch)
    ]


def mixed() -> list[Request]:
    """The mixed workload, read from its file."""
    found = json.loads(MIXED.read_text(encoding="utf-8"))
    return [Request(one["prompt_token_ids"], one["max_tokens"]) for one in found["requests"]]
