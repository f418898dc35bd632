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
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.linear.torch import Head, Linear, TorchLinear
from tokenmill.backends.models.native.decoder import Decoder
from tokenmill.backends.models.native.loader import load_decoder
from tokenmill.backends.weights.formats.gguf_blocks import gguf_weights
from tokenmill.backends.weights.packed import PackedWeights, StoredTensor, WeightFormat, Weights
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

from ... import tiny
from ..dense import compute_logits

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
        self.num_releases = 0

    def tensor_names(self) -> Sequence[str]:
        return tuple(self._tensors)

    def stored(self, name: str) -> StoredTensor:
        tensor = self._tensors[name]
        return StoredTensor(tuple(tensor.shape), tensor.dtype, tensor.nbytes)

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def matrix(self, name: str) -> Weights:
        return self.tensor(name)

    def release(self) -> None:
        self.num_releases += 1


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
        {"model.layers.1.self_attn.q_proj.bias": torch.eye(32)[31]},
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


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(4)),  # recomputed
        ("model.layers.1.self_attn.q_proj.bias", torch.zeros(32)),
    ],
)
def test_a_tensor_that_changes_nothing_is_ignored(name: str, tensor: torch.Tensor) -> None:
    """The decoder is the one without it: its logits and the number of its parameters."""
    plain, given = load({}), load({name: tensor})
    assert given.num_parameters == plain.num_parameters
    token_ids = torch.arange(8)
    assert torch.equal(compute_logits(given, token_ids), compute_logits(plain, token_ids))


def test_a_tied_head_shares_the_embedding_and_a_different_one_in_the_file_wins() -> None:
    tied = load({})
    same = load({"lm_head.weight": ChangedCheckpoint({}).tensor("model.embed_tokens.weight")})
    other = load({"lm_head.weight": torch.ones(64, 32)})
    assert same.num_parameters == tied.num_parameters
    assert other.num_parameters == tied.num_parameters + 64 * 32
    token_ids = torch.arange(8)
    assert torch.equal(compute_logits(same, token_ids), compute_logits(tied, token_ids))
    assert compute_logits(other, token_ids).std(dim=-1).max() < 1e-4


class PackedCheckpoint(ChangedCheckpoint):
    """Has some of its matrices packed, in kinds that are given by the projections' names."""

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        super().__init__({})
        self._kinds = kinds

    def matrix(self, name: str) -> Weights:
        kind = self._kinds.get(name.split(".")[-2])
        tensor = self.tensor(name)
        if kind is None:
            return tensor
        return gguf_weights(kind, torch.from_numpy(gguf.quantize(tensor.numpy(), kind)))


class Keeping(TorchLinear):
    """Keeps two kinds of weights, and records the formats of the segments that it gets."""

    def __init__(self, spec: LinearSpec) -> None:
        self.seen: list[list[str]] = []

    @classmethod
    def keeps(cls, spec: LinearSpec, format: WeightFormat) -> bool:
        return format.name in ("Q4_1", "Q8_0")

    def linear(self, segments: Sequence[Weights], bias: torch.Tensor | None) -> Linear:
        self.seen.append([_name(segment) for segment in segments])
        return super().linear([_dequantized(segment) for segment in segments], bias)

    def head(self, weights: Weights) -> Head:
        self.seen.append([_name(weights)])
        return super().head(_dequantized(weights))


def _name(weights: Weights) -> str:
    return weights.format.name if isinstance(weights, PackedWeights) else "tensor"


def _dequantized(weights: Weights) -> torch.Tensor:
    return weights.dequantize() if isinstance(weights, PackedWeights) else weights


SEGMENTS: dict[str, tuple[dict[str, Kind], list[str], str]] = {
    "kept and stacked": (
        {"q_proj": Kind.Q8_0, "k_proj": Kind.Q8_0, "v_proj": Kind.Q8_0},
        ["Q8_0"],
        "tensor",
    ),
    "of two kinds": (
        {"q_proj": Kind.Q4_1, "k_proj": Kind.Q4_1, "v_proj": Kind.Q8_0},
        ["Q4_1", "Q8_0"],
        "tensor",
    ),
    "not kept": ({"q_proj": Kind.Q5_0, "k_proj": Kind.Q5_0}, ["tensor"], "tensor"),
    "kept in part": ({"k_proj": Kind.Q8_0}, ["tensor", "Q8_0", "tensor"], "tensor"),
    "the embedding, which is the head": ({"embed_tokens": Kind.Q8_0}, ["tensor"], "Q8_0"),
}


@pytest.mark.parametrize("case", SEGMENTS)
def test_matrices_stay_packed_in_the_formats_that_the_backend_keeps(case: str) -> None:
    kinds, qkv, head = SEGMENTS[case]
    backend = Keeping(LinearSpec(dtype=torch.float32, device=torch.device("cpu")))
    checkpoint = PackedCheckpoint(kinds)
    decoder = load_decoder(
        checkpoint,
        dtype=torch.float32,
        device=torch.device("cpu"),
        progress=no_progress,
        linear=backend,
    )
    assert backend.seen[:2] == [[head], qkv]
    names = [name for name in checkpoint.tensor_names() if name.split(".")[-2] in kinds]
    same = load({name: _dequantized(checkpoint.matrix(name)) for name in names})
    token_ids = torch.arange(8)
    if head == "tensor":
        assert torch.equal(compute_logits(decoder, token_ids), compute_logits(same, token_ids))


def test_nothing_stays_packed_if_a_precision_is_asked_for() -> None:
    backend = Keeping(LinearSpec(dtype=torch.float32, device=torch.device("cpu")))
    load_decoder(
        PackedCheckpoint({"q_proj": Kind.Q8_0, "embed_tokens": Kind.Q8_0}),
        dtype=torch.float32,
        device=torch.device("cpu"),
        progress=no_progress,
        linear=backend,
        keeps_packed=False,
    )
    assert {format for segments in backend.seen for format in segments} == {"tensor"}


def test_the_log_says_what_dequantizing_costs(caplog: pytest.LogCaptureFixture) -> None:
    load_decoder(
        PackedCheckpoint({"q_proj": Kind.Q5_0}),
        dtype=torch.float32,
        device=torch.device("cpu"),
        progress=no_progress,
    )
    (event,) = [vars(one) for one in caplog.records if one.msg == "weights_dequantized"]
    assert event["matrices"] == {"Q5_0": CONFIG.num_layers}
    assert event["bytes_read_per_step"] == "5.8 times as many"


def test_pages_of_a_file_are_let_go_while_layers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.backends.models.native.weight_source._RELEASED_BYTES", 1)
    checkpoint = ChangedCheckpoint({})
    load_decoder(
        checkpoint,
        dtype=torch.float32,
        device=torch.device("cpu"),
        progress=no_progress,
    )
    assert checkpoint.num_releases == CONFIG.num_layers
