"""transformers' reading of the default model: its tensors, how likely a text is, what it generates.

Loading it takes 20 s, so all tests that always need it are in this module, and in `make check`. In
`make test`, test_greedy_equality.py compares with tokens that transformers generated once. The text
is the first chapter of Pride and Prejudice (Jane Austen, 1813), in the public domain.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.backends.models.dense import compute_logits
from tokenmill.backends.cpu.native.library import load_library
from tokenmill.backends.machine.compiling import BuildError
from tokenmill.backends.models.native.loader import load_decoder
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.backends.weights.default_model import find_default_model
from tokenmill.core.interfaces import no_progress

from .comparison import find_near_ties
from .prompts import NUM_LONG_TOKENS, all_prompts
from .reference import Reference, ReferenceCase
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


@pytest.mark.check
@pytest.mark.parametrize("weights", ["quantized", "bfloat16"])
def test_perplexity_is_within_one_percent(
    weights: str, right: torch.Tensor, request: pytest.FixtureRequest
) -> None:
    found: torch.Tensor = request.getfixturevalue(weights)
    assert perplexity(found) == pytest.approx(perplexity(right), rel=0.01)


@pytest.mark.check
def test_quantized_weights_were_not_rounded_to_bfloat16(
    quantized: torch.Tensor, bfloat16: torch.Tensor
) -> None:
    try:
        load_library()
    except BuildError as error:
        pytest.skip(str(error))
    assert not torch.equal(quantized, bfloat16)


@pytest.mark.check
def test_float32_gives_every_token_its_probability(
    token_ids: list[int], right: torch.Tensor
) -> None:
    found = logprobs_of_executor(token_ids, dtype="float32")
    assert (found - right).abs().max() < 1e-3
    assert perplexity(found) == pytest.approx(perplexity(right), rel=1e-5)


@pytest.mark.check
def test_the_default_model_is_the_one_that_transformers_reads(reference: Reference) -> None:
    """Every tensor is equal to the last bit, and so nearly are the logits of a prompt."""
    checkpoint = open_checkpoint(find_default_model())
    weights = reference.model.state_dict()
    for name in checkpoint.tensor_names():
        assert torch.equal(checkpoint.tensor(name), weights[name]), name
    decoder = load_decoder(
        checkpoint, dtype=torch.float32, device=torch.device("cpu"), progress=no_progress
    )
    token_ids = torch.arange(5, 69) * 37 % checkpoint.config.vocab_size
    with torch.inference_mode():
        expected = reference.model(token_ids.unsqueeze(0)).logits.squeeze(0)
        actual = compute_logits(decoder, token_ids)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))
    assert decoder.num_parameters == reference.model.num_parameters()
    assert checkpoint.name == "SmolLM2-135M-Instruct"
    assert checkpoint.eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("step", "num_tokens"),
    [
        pytest.param(1, NUM_LONG_TOKENS, marks=pytest.mark.soak, id="all"),
        pytest.param(9, 16, marks=pytest.mark.check, id="sample"),
    ],
)
def test_the_recorded_continuations_are_those_of_transformers(
    step: int, num_tokens: int, reference: Reference, cases: list[ReferenceCase]
) -> None:
    prompts = [replace(p, num_tokens=min(p.num_tokens, num_tokens)) for p in all_prompts()[::step]]
    recorded = [case.shortened(num_tokens) for case in cases[::step]]
    generated = reference.generate(prompts)
    assert [c.prompt_token_ids for c in recorded] == [c.prompt_token_ids for c in generated]
    find_near_ties(reference.gap, recorded, [case.token_ids for case in generated])
