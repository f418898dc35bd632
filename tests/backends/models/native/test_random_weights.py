"""Random checkpoints: reproducible, complete, and with decided outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.models.native.loader import load_decoder
from tokenmill.backends.weights.config.features import Features
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

from ..dense import compute_logits
from .test_loader import CONFIG

VARIANTS = {
    "tied": CONFIG,
    "untied": replace(CONFIG, tie_word_embeddings=False),
    "biases": replace(CONFIG, attention_bias=True, attention_output_bias=True, mlp_bias=True),
    "norms on q and k": replace(
        CONFIG, architecture="Qwen3ForCausalLM", features=Features(qk_norm=True)
    ),
}


def test_the_same_seed_gives_the_same_weights_and_another_one_others() -> None:
    first, again, other = (random_checkpoint(CONFIG, seed) for seed in (1, 1, 2))
    names = list(first.tensor_names())
    assert len(names) > 10
    for name in names:
        assert torch.equal(first.tensor(name), again.tensor(name))
        assert not torch.equal(first.tensor(name), other.tensor(name))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_have_a_clear_winner_that_depends_on_the_context(variant: str) -> None:
    decoder = load_decoder(
        random_checkpoint(VARIANTS[variant], 0),
        dtype=torch.float32,
        device=torch.device("cpu"),
        progress=no_progress,
    )
    token_ids = torch.arange(30) * 7 % 64
    logits = compute_logits(decoder, token_ids)
    top = logits.topk(2).values
    assert (top[:, 0] - top[:, 1]).min() > 1e-4
    assert len(set(logits.argmax(-1).tolist())) > 10
    changed = compute_logits(decoder, token_ids.index_fill(0, torch.tensor([0]), 63))
    assert (changed[1:] - logits[1:]).abs().amax(-1).min() > 1e-3


def test_unknown_tensors_are_an_error() -> None:
    with pytest.raises(ConfigError, match="lacks the tensor nothing"):
        random_checkpoint(CONFIG, 0).tensor("nothing")
