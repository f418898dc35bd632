"""Loading: every tensor is needed, checked and used, whatever the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.linear.projections import TorchProjections
from tokenmill.backends.models.decoder import Decoder
from tokenmill.backends.models.loader import load_decoder
from tokenmill.backends.weights.quantized import QuantizedMatrix, UnreadMatrix
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

from .. import tiny
from .dense import compute_logits

CONFIG = replace(tiny.CONFIG, vocab_size=64, max_position_embeddings=32, tie_word_embeddings=True)


class ChangedCheckpoint:
    """A random checkpoint with tensors put in, changed or (None) taken out."""

    eos_token_ids = ()
    sampling_defaults: Mapping[str, float | int] = {}
    path, name, dtype, config = Path("changed"), "changed", torch.float32, CONFIG

    def __init__(self, changes: Mapping[str, torch.Tensor | None]) -> None:
        original = random_checkpoint(CONFIG, 0)
        tensors = {name: original.tensor(name) for name in original.tensor_names()}
        self._tensors = {k: v for k, v in (tensors | dict(changes)).items() if v is not None}

    def tensor_names(self) -> Sequence[str]:
        return tuple(self._tensors)

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def quantized(self, name: str) -> UnreadMatrix | None:
        return None


def load(changes: Mapping[str, torch.Tensor | None]) -> Decoder:
    return load_decoder(
        ChangedCheckpoint(changes),
        dtype=torch.float32,
        device=torch.device("cpu"),
        progress=no_progress,
    )


def test_progress_rises_to_one() -> None:
    seen: list[tuple[str, float]] = []
    load_decoder(
        random_checkpoint(CONFIG, 0),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        progress=lambda stage, done: seen.append((stage, done)),
    )
    assert {stage for stage, _ in seen} == {"loading weights"}
    assert [done for _, done in seen] == sorted(done for _, done in seen)
    assert seen[0][1] == 0.0
    assert seen[-1][1] == 1.0


REFUSED: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "missing": ({"model.norm.weight": None}, "lacks the tensor model.norm.weight"),
    "superfluous": (
        {"model.layers.1.self_attn.q_proj.bias": torch.zeros(32)},
        r"1 tensors that LlamaForCausalLM with this configuration does not use.*q_proj.bias",
    ),
    "wrong shape": (
        {"model.layers.0.mlp.up_proj.weight": torch.zeros(48, 31)},
        r"up_proj.weight of changed has shape \[48, 31\].*requires \[48, 32\]",
    ),
    "integers": (
        {"model.norm.weight": torch.zeros(32, dtype=torch.int32)},
        "torch.int32, which is not supported",
    ),
    "8-bit floats": (
        {"model.norm.weight": torch.zeros(32).to(torch.float8_e4m3fn)},
        "torch.float8_e4m3fn, which is not supported",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_a_checkpoint_that_does_not_fit_its_configuration(case: str) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        load(changes)


def test_tensors_that_follow_from_the_configuration_are_ignored() -> None:
    load({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})


def test_a_tied_head_shares_the_embedding_and_a_different_one_in_the_file_wins() -> None:
    tied = load({})
    same = load({"lm_head.weight": ChangedCheckpoint({}).tensor("model.embed_tokens.weight")})
    other = load({"lm_head.weight": torch.ones(64, 32)})
    assert same.num_parameters == tied.num_parameters
    assert other.num_parameters == tied.num_parameters + 64 * 32
    token_ids = torch.arange(8)
    assert torch.equal(compute_logits(same, token_ids), compute_logits(tied, token_ids))
    assert compute_logits(other, token_ids).std(dim=-1).max() < 1e-4


class QuantizedCheckpoint(ChangedCheckpoint):
    """Says that its matrices are quantized, which nobody may read."""

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        super().__init__({})
        self._kinds = kinds

    def quantized(self, name: str) -> UnreadMatrix | None:
        kind = self._kinds.get(name.split(".")[-2])
        if kind is None:
            return None
        rows, columns = self.tensor(name).shape
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        return UnreadMatrix((rows, columns // block_size * block_bytes), kind, self._read)

    def _read(self) -> QuantizedMatrix:
        raise AssertionError("it was read")


class Keeping(TorchProjections):
    """Would keep two kinds of weights."""

    def keeps(self, kind: Kind) -> bool:
        return kind in (Kind.Q4_1, Kind.Q8_0)


@pytest.mark.parametrize(
    "kinds",
    [
        {"q_proj": Kind.Q6_K, "k_proj": Kind.Q6_K, "v_proj": Kind.Q6_K, "embed_tokens": Kind.Q5_0},
        {"q_proj": Kind.Q4_1, "k_proj": Kind.Q4_1, "v_proj": Kind.Q8_0},
        {"gate_proj": Kind.Q8_0},
    ],
    ids=["not computed with", "of two kinds", "in part"],
)
def test_quantized_matrices_are_read_only_if_they_are_kept(kinds: Mapping[str, Kind]) -> None:
    decoder = load_decoder(
        QuantizedCheckpoint(kinds),
        dtype=torch.float32,
        device=torch.device("cpu"),
        progress=no_progress,
        projections=Keeping("silu"),
    )
    token_ids = torch.arange(8)
    assert torch.equal(compute_logits(decoder, token_ids), compute_logits(load({}), token_ids))
