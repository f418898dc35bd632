"""Embedding and head: the rows that are looked up, and the memory that both have in common."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from tests.backends.tiny import CPU
from tokenmill.backends.cpu.embedding import NativeEmbedding
from tokenmill.backends.cpu.native.library import load_library
from tokenmill.backends.cpu.projections import CPULinear
from tokenmill.backends.linear.base import LinearSpec
from tokenmill.backends.linear.torch import EmbeddingTable, TorchLinear
from tokenmill.backends.models.native.ends import Ends, load_ends
from tokenmill.backends.models.native.weight_source import WeightSource
from tokenmill.backends.weights.packed import PackedWeights

from .test_loader import CONFIG, Keeping, PackedCheckpoint

EMBEDDING = "model.embed_tokens.weight"
IDS = torch.tensor([63, 0, 31, 31], dtype=torch.int32)
BFLOAT16 = LinearSpec(dtype=torch.bfloat16, device=CPU)
UNTIED = replace(CONFIG, tie_word_embeddings=False)


def load(
    checkpoint: PackedCheckpoint,
    makes: CPULinear | TorchLinear,
    config: object = CONFIG,
    dtype: torch.dtype = torch.bfloat16,
) -> Ends:
    return load_ends(WeightSource(checkpoint, dtype, CPU, makes), config, makes)  # type: ignore[arg-type]


def rows_of(checkpoint: PackedCheckpoint) -> torch.Tensor:
    """The rows of IDS, in bfloat16."""
    matrix = checkpoint.matrix(EMBEDDING)
    dense = matrix.dequantize() if isinstance(matrix, PackedWeights) else matrix
    return dense[IDS.long()].to(torch.bfloat16)


@pytest.mark.parametrize("kinds", [{}, {"embed_tokens": Kind.Q8_0}, {"embed_tokens": Kind.Q4_1}])
def test_tied_ends_are_one_packed_matrix(kinds: dict[str, Kind]) -> None:
    load_library()
    checkpoint = PackedCheckpoint(kinds)
    ends = load(checkpoint, CPULinear(BFLOAT16))
    assert isinstance(ends.embedding, NativeEmbedding)
    assert ends.is_shared and ends.embedding.packed is ends.head.packed  # type: ignore[attr-defined]
    assert torch.equal(ends.embedding(IDS), rows_of(checkpoint))


@pytest.mark.parametrize("part", [(0, 40), (40, 24)])
@pytest.mark.parametrize("kinds", [{}, {"embed_tokens": Kind.Q8_0}])
def test_a_rank_looks_up_all_rows_and_has_a_part_of_the_head(
    kinds: dict[str, Kind], part: tuple[int, int]
) -> None:
    checkpoint = PackedCheckpoint(kinds)
    whole = load(checkpoint, CPULinear(BFLOAT16))
    ends = load(checkpoint, CPULinear(BFLOAT16), replace(CONFIG, logits_part=part))
    assert not ends.is_shared and isinstance(ends.embedding, NativeEmbedding) is bool(kinds)
    moved = ends.embedding.shared(torch.clone)
    for embedding in (ends.embedding, moved):
        assert torch.equal(embedding(IDS), rows_of(checkpoint))
        assert embedding.num_bytes == ends.embedding.num_bytes
    x = torch.ones(1, 32, dtype=torch.bfloat16)
    logits = whole.head(x)[:, part[0] : sum(part)]
    torch.testing.assert_close(ends.head(x), logits, rtol=1e-5, atol=1e-5)


def test_packed_rows_without_a_head_stay_packed() -> None:
    checkpoint = PackedCheckpoint({"embed_tokens": Kind.Q4_1})
    ends = load(checkpoint, CPULinear(BFLOAT16), replace(UNTIED, later_layers=CONFIG.layer_kinds))
    assert not UNTIED.tie_word_embeddings and ends.head.num_bytes == 0
    assert torch.equal(ends.embedding(IDS), rows_of(checkpoint))
    assert ends.embedding.num_bytes == 64 * 32 * 20 // 32


def test_a_backend_that_cannot_look_up_rows_gets_a_table() -> None:
    checkpoint = PackedCheckpoint({"embed_tokens": Kind.Q8_0})
    spec = LinearSpec(dtype=torch.float32, device=CPU)
    ends = load(checkpoint, Keeping(spec), dtype=torch.float32)
    assert isinstance(ends.embedding, EmbeddingTable)
    assert torch.equal(ends.embedding(IDS).bfloat16(), rows_of(checkpoint))


def test_a_head_of_torch_computes_with_the_table() -> None:
    spec = LinearSpec(dtype=torch.float32, device=CPU)
    for config in (CONFIG, replace(CONFIG, logits_part=(40, 24))):
        ends = load(PackedCheckpoint({}), TorchLinear(spec), config, torch.float32)
        assert isinstance(ends.embedding, EmbeddingTable)
        first, _ = config.logits_part or (0, 64)
        head = ends.head.linear.weight  # type: ignore[attr-defined]
        assert ends.is_shared
        assert head.data_ptr() == ends.embedding.weight_ve[first:].data_ptr()
