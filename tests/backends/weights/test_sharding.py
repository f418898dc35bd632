"""The ranks' parts of a model: together they are the whole model, and each has whole heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType

from tests.backends.random_weights import random_checkpoint
from tests.backends.tiny import CONFIG
from tokenmill.backends.weights.checkpoint import Checkpoint
from tokenmill.backends.weights.checkpoint_decorator import CheckpointDecorator
from tokenmill.backends.weights.config.features import Features
from tokenmill.backends.weights.config.model_config import ExpertsConfig, ModelConfig
from tokenmill.backends.weights.expert_sharding import part_of
from tokenmill.backends.weights.formats.gguf_blocks import GGUFBlocks
from tokenmill.backends.weights.packed import StoredTensor
from tokenmill.backends.weights.sharding import Shard
from tokenmill.core.errors import ConfigError

ATTENTION = "model.layers.1.self_attn"
EMBEDDING = "model.embed_tokens.weight"
Q8_0 = GGUFBlocks(GGMLQuantizationType.Q8_0)
EXPERTS = ExpertsConfig(num_experts=4, num_active=2, intermediate_size=2, normalizes_shares=True)
SMOL = replace(CONFIG, num_heads=9, num_kv_heads=3, intermediate_size=96)


def parts_of(config: ModelConfig, size: int, inner: Any = None) -> list[Checkpoint]:
    whole = inner or random_checkpoint(config, 5)
    return [part_of(whole, Shard(rank=rank, size=size)) for rank in range(size)]


@pytest.mark.parametrize(
    ("size", "heads", "kv_heads"),
    [
        (1, [9], [3]),
        (2, [6, 3], [2, 1]),
        (3, [3, 3, 3], [1, 1, 1]),
        (4, [2, 1, 3, 3], [1, 1, 1, 1]),
        (9, [1] * 9, [1] * 9),
    ],
)
def test_heads_are_divided_by_the_kv_head_that_they_share(
    size: int, heads: list[int], kv_heads: list[int]
) -> None:
    parts = parts_of(replace(SMOL, intermediate_size=144), size)
    assert [part.config.num_heads for part in parts] == heads
    assert [part.config.num_kv_heads for part in parts] == kv_heads
    whole = random_checkpoint(replace(SMOL, intermediate_size=144), 5)
    rows = torch.cat([part.tensor(f"{ATTENTION}.q_proj.weight") for part in parts])
    assert torch.equal(rows, whole.tensor(f"{ATTENTION}.q_proj.weight"))
    keys = whole.tensor(f"{ATTENTION}.k_proj.weight").view(3, CONFIG.head_size, -1)
    first = 0
    for part in parts:  # each query head finds its own KV head
        own = part.tensor(f"{ATTENTION}.k_proj.weight").view(-1, CONFIG.head_size, keys.shape[-1])
        group = part.config.num_heads // part.config.num_kv_heads
        for head in range(part.config.num_heads):
            assert torch.equal(own[head // group], keys[(first + head) // 3])
        first += part.config.num_heads


@pytest.mark.parametrize("size", [2, 3])
def test_partial_products_add_up_to_the_whole_and_are_described_as_they_are(size: int) -> None:
    config = replace(SMOL, attention_output_bias=True, mlp_bias=True)
    parts, whole = parts_of(config, size), random_checkpoint(config, 5)
    for name in whole.tensor_names():
        for part in parts:
            stored = part.stored(name)
            assert stored.shape == tuple(part.tensor(name).shape)
            assert stored.num_bytes == part.tensor(name).nbytes
    x = torch.randn(2, config.num_heads * config.head_size)
    name = f"{ATTENTION}.o_proj.weight"
    widths = [part.config.num_heads * config.head_size for part in parts]
    inputs = torch.split(x, widths, dim=1)
    found = sum(one @ part.tensor(name).T for one, part in zip(inputs, parts, strict=True))
    torch.testing.assert_close(found, x @ whole.tensor(name).T)
    for bias in ("self_attn.o_proj.bias", "mlp.down_proj.bias"):
        total = sum(part.tensor(f"model.layers.0.{bias}") for part in parts)
        assert torch.equal(torch.as_tensor(total), whole.tensor(f"model.layers.0.{bias}"))


class Packed(CheckpointDecorator):
    """A checkpoint whose down_proj claims to be packed in blocks."""

    def stored(self, name: str) -> StoredTensor:
        found = super().stored(name)
        return (
            replace(found, format=GGUFBlocks(GGMLQuantizationType.Q8_0))
            if "down_proj" in name
            else found
        )


def test_columns_are_divided_in_whole_blocks_of_packed_weights() -> None:
    parts = parts_of(SMOL, 2, Packed(random_checkpoint(SMOL, 5)))
    assert [part.config.intermediate_size for part in parts] == [64, 32]


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize(("vocab_size", "rows"), [(192, [96, 96]), (96, [64, 32]), (131, [66, 65])])
def test_each_rank_has_some_rows_of_the_head_and_the_whole_embedding(
    vocab_size: int, rows: list[int], is_tied: bool
) -> None:
    config = replace(SMOL, vocab_size=vocab_size, tie_word_embeddings=is_tied)
    whole, parts = random_checkpoint(config, 5), parts_of(config, 2)
    embedding = whole.tensor(EMBEDDING)
    for part in parts:
        assert torch.equal(torch.as_tensor(part.matrix(EMBEDDING)), embedding)
    if not is_tied:
        matrices = [torch.as_tensor(part.matrix("lm_head.weight")) for part in parts]
        assert [len(matrix) for matrix in matrices] == rows
        assert torch.equal(torch.cat(matrices), whole.tensor("lm_head.weight"))
    assert [part.config.logits_part for part in parts] == [(0, rows[0]), tuple(rows)]


def test_fused_matrices_are_divided_part_by_part() -> None:
    whole = random_checkpoint(CONFIG, 5)
    q, k, v = (whole.tensor(f"{ATTENTION}.{name}_proj.weight") for name in "qkv")

    class Fused(CheckpointDecorator):
        def tensor(self, name: str) -> torch.Tensor:
            return torch.cat((q, k, v)) if "qkv" in name else super().tensor(name)

    for index, part in enumerate(parts_of(CONFIG, 2, Fused(whole))):
        wanted = torch.cat([one.chunk(2)[index] for one in (q, k, v)])
        assert torch.equal(part.tensor(f"{ATTENTION}.qkv_proj.weight"), wanted)


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({}, 5, "--tensor-parallel-size 5: the model has only 4 query heads"),
        ({"intermediate_size": 2}, 3, "the model's 2 blocks of 1 feed-forward columns"),
        ({"experts": EXPERTS}, 3, "the model's 2 blocks of 1 feed-forward columns"),
        (
            {"features": Features(whole_qk_norm=True)},
            3,
            "only 2 KV heads, and LlamaForCausalLM needs one per",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(
    changes: dict[str, Any], size: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parts_of(replace(CONFIG, **changes), size)
