"""Tensors of GGUF files: their names, the order of their rows, and the offset of norms."""

from __future__ import annotations

import gguf
import pytest
import torch

from tokenmill.backends.weights.config.architectures import BY_GGUF_NAME, BY_NAME
from tokenmill.backends.weights.gguf.names import GGUFNames

from ...models.native.test_loader import CONFIG
from ..gguf_converting import permute

ARCHES = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
STEMS = (
    "self_attn.q_proj",
    "self_attn.k_norm",
    "self_attn.o_proj",
    "self_attn.qkv_proj",
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.gate_up_proj",
    "mlp.down_proj",
    "mlp.gate",
    "mlp.router",
    "mlp.experts.gate_proj",
    "mlp.experts.down_proj",
)


@pytest.mark.parametrize("architecture", BY_GGUF_NAME)
def test_names_are_those_that_the_gguf_package_gives(architecture: str) -> None:
    """Names that two of ours share, as in Gemma and Phi-3, belong to the one that the model has."""
    names = GGUFNames(BY_GGUF_NAME[architecture])
    theirs = gguf.get_tensor_name_map(ARCHES[architecture], 4)
    known = {f"model.layers.3.{stem}": theirs.get_name(f"model.layers.3.{stem}") for stem in STEMS}
    found = {name: names.to_hf(f"{new}.weight") for name, new in known.items() if new is not None}
    assert len(found) >= 7
    for name, ours in found.items():
        others = [other for other, new in known.items() if new == known[name]]
        assert ours.removesuffix(".weight") in others


def test_a_name_that_is_not_known_stays_as_it_is() -> None:
    names = GGUFNames(BY_GGUF_NAME["llama"])
    assert names.to_hf("blk.0.ffn_new.weight") == "blk.0.ffn_new.weight"
    assert names.to_hf("blk.x.attn_q.weight") == "blk.x.attn_q.weight"


def test_rows_of_q_and_k_are_put_in_order_also_in_one_matrix_with_v() -> None:
    names, size = GGUFNames(BY_GGUF_NAME["llama"]), CONFIG.head_size
    q, k, v = (torch.randn(heads * size, 32) for heads in (4, 2, 2))
    fused = torch.cat((permute(q, size), permute(k, size), v))
    stem = "model.layers.0.self_attn"
    assert torch.equal(names.in_order(f"{stem}.q_proj.weight", permute(q, size), CONFIG), q)
    assert torch.equal(names.in_order(f"{stem}.k_proj.weight", permute(k, size), CONFIG), k)
    assert torch.equal(names.in_order(f"{stem}.v_proj.weight", v, CONFIG), v)
    ordered = names.in_order(f"{stem}.qkv_proj.weight", fused, CONFIG)
    assert torch.equal(ordered, torch.cat((q, k, v)))
    plain = GGUFNames(BY_GGUF_NAME["qwen2"])
    assert torch.equal(plain.in_order(f"{stem}.q_proj.weight", q, CONFIG), q)


def test_norms_of_gemma_lose_their_offset_and_nothing_else_does() -> None:
    names = GGUFNames(BY_NAME["Gemma2ForCausalLM"])
    weight = torch.tensor([0.75, 1.5])
    expected = torch.tensor([-0.25, 0.5])
    for name in ("model.norm.weight", "model.layers.0.input_layernorm.weight"):
        assert torch.equal(names.without_offset(name, weight), expected)
    assert torch.equal(names.without_offset("model.embed_tokens.weight", weight), weight)
    plain = GGUFNames(BY_NAME["LlamaForCausalLM"])
    assert torch.equal(plain.without_offset("model.norm.weight", weight), weight)
