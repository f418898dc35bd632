"""A text is as likely to the engine as to transformers on the dequantized file, for all kernels.

The text is the first chapter of Pride and Prejudice (Jane Austen, 1813), in the public domain.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tokenmill.backends.cpu.native.library import load_library
from tokenmill.backends.machine.compiling import BuildError

from .reference import Reference
from .scoring import logprobs_of_executor, logprobs_of_transformers

TEXT = Path(__file__).parent / "texts" / "pride_and_prejudice.txt"


@pytest.fixture(scope="module")
def token_ids(reference: Reference) -> list[int]:
    ids: list[int] = reference.tokenizer(TEXT.read_text(encoding="utf-8")).input_ids
    assert len(ids) >= 1000
    return ids


@pytest.fixture(scope="module")
def right(reference: Reference, token_ids: list[int]) -> torch.Tensor:
    """Log-probabilities by transformers in float32."""
    return logprobs_of_transformers(reference.model, token_ids)


@pytest.fixture(scope="module")
def quantized(token_ids: list[int]) -> torch.Tensor:
    """By weights that stay what they are in the file: 4 bits."""
    return logprobs_of_executor(token_ids, dtype="auto")


@pytest.fixture(scope="module")
def bfloat16(token_ids: list[int]) -> torch.Tensor:
    return logprobs_of_executor(token_ids, dtype="bfloat16")


def perplexity(logprobs: torch.Tensor) -> float:
    return float((-logprobs.mean()).exp())


@pytest.mark.parametrize("weights", ["quantized", "bfloat16"])
def test_perplexity_is_within_one_percent(
    weights: str, right: torch.Tensor, request: pytest.FixtureRequest
) -> None:
    found: torch.Tensor = request.getfixturevalue(weights)
    assert perplexity(found) == pytest.approx(perplexity(right), rel=0.01)


def test_quantized_weights_were_not_rounded_to_bfloat16(
    quantized: torch.Tensor, bfloat16: torch.Tensor
) -> None:
    try:
        load_library()
    except BuildError as error:
        pytest.skip(str(error))
    assert not torch.equal(quantized, bfloat16)


def test_float32_gives_every_token_its_probability(
    token_ids: list[int], right: torch.Tensor
) -> None:
    found = logprobs_of_executor(token_ids, dtype="float32")
    assert (found - right).abs().max() < 1e-3
    assert perplexity(found) == pytest.approx(perplexity(right), rel=1e-5)
