"""Experts on real weights: SmolLM2 with copies of its feed-forward networks as experts.

Not in the first tier, where test_architectures.py compares toy models with experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import transformers

from tokenmill.assembly import verify_default_model
from tokenmill.backends.distill.pruned import PrunedCheckpoint
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.backends.weights.config.model_config import ExpertsConfig
from tokenmill.core.interfaces import no_progress

from . import toy
from .comparison import find_near_ties
from .reference import ReferenceCase, continue_greedily, gap
from .settings import Setting

EXPERTS = 3
TEXTS = (
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time, there was a little girl who lived in",
    "Water boils at 100 degrees, and it",
)


class Upcycled(PrunedCheckpoint):
    """The first layers of a dense model, with experts that are copies plus noise."""

    def __init__(self, target: Checkpoint, num_layers: int, noise: float) -> None:
        """`noise` is the standard deviation of the noise, compared with that of the weights."""
        super().__init__(target, range(num_layers), None)
        self._noise = noise
        self.config = replace(
            self.config,
            architecture="MixtralForCausalLM",
            experts=ExpertsConfig(
                num_experts=EXPERTS,
                num_active=2,
                intermediate_size=self.config.intermediate_size,
                normalizes_shares=True,
            ),
        )

    def tensor_names(self) -> Sequence[str]:
        names = []
        for name in super().tensor_names():
            layer, is_dense, end = name.partition(".mlp.")
            if is_dense:
                names += [f"{layer}.mlp.experts.{index}.{end}" for index in range(EXPERTS)]
            else:
                names.append(name)
        layers = range(self.config.num_layers)
        return [*names, *(f"model.layers.{layer}.mlp.gate.weight" for layer in layers)]

    def tensor(self, name: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(name.encode()) * len(name))
        if name.endswith(".mlp.gate.weight"):
            size = self.config.hidden_size
            return torch.randn(EXPERTS, size, generator=generator) * size**-0.5
        layer, is_expert, end = name.partition(".mlp.experts.")
        if not is_expert:
            return super().tensor(name)
        weights = super().tensor(f"{layer}.mlp.{end.partition('.')[2]}")
        noise = torch.randn(weights.shape, generator=generator)
        return weights + noise * weights.std() * self._noise


def make_reference(checkpoint: Upcycled) -> Any:
    """transformers' Mixtral with the very same weights."""
    own = checkpoint.config
    config = transformers.MixtralConfig(
        vocab_size=own.vocab_size,
        hidden_size=own.hidden_size,
        intermediate_size=own.intermediate_size,
        num_hidden_layers=own.num_layers,
        num_attention_heads=own.num_heads,
        num_key_value_heads=own.num_kv_heads,
        head_dim=own.head_size,
        max_position_embeddings=own.max_position_embeddings,
        rms_norm_eps=own.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": own.rope.theta},
        tie_word_embeddings=own.tie_word_embeddings,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.MixtralForCausalLM(config).eval()
    names = [name for name in checkpoint.tensor_names() if ".experts." not in name]
    weights = {name: checkpoint.tensor(name) for name in names}
    for layer in range(own.num_layers):
        stem = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            torch.stack([checkpoint.tensor(f"{stem}.{i}.{part}.weight") for i in range(EXPERTS)])
            for part in ("gate_proj", "up_proj", "down_proj")
        )
        weights |= {f"{stem}.gate_up_proj": torch.cat((gate, up), dim=1), f"{stem}.down_proj": down}
    missing = model.load_state_dict(weights, strict=False).missing_keys
    assert set(missing) <= {"lm_head.weight"}
    return model


@pytest.mark.parametrize(
    "num_layers",
    [pytest.param(2, marks=pytest.mark.check), pytest.param(30, marks=pytest.mark.soak)],
)
def test_equal_experts_are_the_dense_model_and_others_serve_the_tokens_of_transformers(
    num_layers: int,
) -> None:
    path = verify_default_model(no_progress)
    target, tokenizer = open_checkpoint(path), load_tokenizer(path)
    texts = TEXTS if num_layers > 2 else TEXTS[:2]
    prompts = [tuple(tokenizer.encode(text)) for text in texts]
    setting = Setting(scheduler="chunked", max_num_batched_tokens=16)
    dense = PrunedCheckpoint(target, range(num_layers), None)
    for noise, is_dense in ((0.0, True), (0.5, False)):
        checkpoint = Upcycled(target, num_layers, noise)
        model = make_reference(checkpoint)
        outputs = continue_greedily(model, prompts, 8 if num_layers == 2 else 48)
        cases = list(map(ReferenceCase, texts, prompts, outputs))
        served = toy.serve(setting, cases, checkpoint)
        find_near_ties(partial(gap, model), cases, served.token_ids)
        of_dense = toy.serve(setting, cases, dense).token_ids
        assert (list(of_dense) == outputs) is is_dense
