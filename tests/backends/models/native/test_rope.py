"""Rotary frequencies against transformers' own functions, and the table."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tokenmill.backends.models.native.rope import (
    attention_factor,
    build_rotary_table,
    inverse_frequencies,
    rotate,
)
from tokenmill.backends.weights.config.rope_config import RopeConfig, RopeScaling
from tokenmill.core.errors import ConfigError

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn, narrow": {
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 4.0,
        "beta_slow": 3.9,
        "truncate": False,
    },
    "yarn, with attention factor": {
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "attention_factor": 1.5,
    },
    "yarn, with mscale": {
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 0.8,
    },
}


@pytest.mark.parametrize("case", SCALINGS)
def test_frequencies_are_transformers_to_the_last_bit(case: str) -> None:
    kind, numbers = case.split(",")[0], SCALINGS[case]
    config = transformers.LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": kind, "rope_theta": 500000.0, **numbers},
    )
    expected, expected_factor = ROPE_INIT_FUNCTIONS[kind](config)
    rope = RopeConfig(theta=500000.0, scaling=RopeScaling(kind), **numbers)
    assert torch.equal(inverse_frequencies(rope, 128, 64), expected)
    assert attention_factor(rope) == pytest.approx(expected_factor)


def test_gguf_s_divisors_give_llama3_s_frequencies() -> None:
    """llama.cpp stores unscaled frequencies divided by scaled ones instead of the formula."""
    scaled = RopeConfig(theta=500000.0, scaling=RopeScaling.LLAMA3, **SCALINGS["llama3"])
    plain = RopeConfig(theta=500000.0)
    divisors = inverse_frequencies(plain, 64, 64) / inverse_frequencies(scaled, 64, 64)
    with_divisors = RopeConfig(theta=500000.0, frequency_divisors=tuple(divisors.tolist()))
    torch.testing.assert_close(
        inverse_frequencies(with_divisors, 64, 64), inverse_frequencies(scaled, 64, 64)
    )


@pytest.mark.parametrize("divisor", [0.0, -1.0, math.nan, math.inf])
def test_divisors_that_are_no_positive_numbers_are_refused(divisor: float) -> None:
    with pytest.raises(ConfigError, match="must be positive and finite"):
        RopeConfig(frequency_divisors=(1.0, divisor))


def test_a_rotation_keeps_lengths_and_depends_on_the_distance_only() -> None:
    table = build_rotary_table(
        RopeConfig(),
        rotary_size=16,
        num_positions=64,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    q, k = torch.randn(2, 1, 3, 16, generator=torch.Generator().manual_seed(0))

    def score(q_position: int, k_position: int) -> torch.Tensor:
        q_at = rotate(q, *table.at(torch.tensor([q_position])))
        k_at = rotate(k, *table.at(torch.tensor([k_position], dtype=torch.int32)))
        torch.testing.assert_close(q_at.norm(dim=-1), q.norm(dim=-1))
        return (q_at * k_at).sum(-1)

    torch.testing.assert_close(score(7, 2), score(60, 55), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(score(7, 2), score(7, 3), rtol=1e-2)
