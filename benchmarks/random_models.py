"""Writes models with random weights: real shapes and vocabularies, for measurements of loading."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, product
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_FACTORS: Mapping[Kind, Mapping[int, float]] = {
    Kind.Q4_0: {0: 4e-3},
    Kind.Q4_K: {0: 8e-5, 2: 6e-4},
    Kind.Q6_K: {208: 1.5e-5},
}
"""The fp16 numbers of a block, by their offset: weights get a standard deviation of about 0.02."""
_NORM_EPS = 1e-5
_ROPE_THETA = 500000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a Llama with tied embeddings."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int = 4096

    def matrices(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """GGUF's names and shapes [out, in] of all matrices."""
        q, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        yield "token_embd", (self.vocabulary, self.hidden)
        for layer in range(self.layers):
            for name, rows, inputs in (
                ("attn_q", q, self.hidden),
                ("attn_k", kv, self.hidden),
                ("attn_v", kv, self.hidden),
                ("attn_output", self.hidden, q),
                ("ffn_gate", self.inner, self.hidden),
                ("ffn_up", self.inner, self.hidden),
                ("ffn_down", self.hidden, self.inner),
            ):
                yield f"blk.{layer}.{name}", (rows, inputs)

    def norms(self) -> Iterator[str]:
        """GGUF's names of all norms."""
        yield "output_norm"
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_norm"
            yield f"blk.{layer}.ffn_norm"


SHAPES = {
    "0.6B": Shape(
        hidden=1024,
        inner=3072,
        layers=28,
        heads=16,
        kv_heads=8,
        head_size=128,
        vocabulary=151936,
    ),
    "1B": Shape(
        hidden=2048,
        inner=8192,
        layers=16,
        heads=32,
        kv_heads=8,
        head_size=64,
        vocabulary=128256,
    ),
}
"""Shapes of Qwen3-0.6B and Llama-3.2-1B."""


def write_safetensors(folder: Path, shape: Shape, seed: int) -> None:
    """Write a Hugging Face directory in bfloat16."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(_config(shape)), encoding="utf-8")
    tokenizer = Tokenizer(models.BPE(*_vocabulary(shape)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    random = torch.Generator().manual_seed(seed)
    tensors = {
        _transformers_name(name): torch.empty(sizes, dtype=torch.bfloat16).normal_(
            0, 0.02, generator=random
        )
        for name, sizes in shape.matrices()
    }
    for name in shape.norms():
        tensors[_transformers_name(name)] = torch.ones(shape.hidden, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")


def write_gguf(path: Path, shape: Shape, kind: Kind, seed: int) -> None:
    """Write a GGUF file, in bfloat16 or quantized. As in most files, the embedding of a
    quantized one is Q6_K."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(_NORM_EPS)
    writer.add_rope_freq_base(_ROPE_THETA)
    vocabulary, merges = _vocabulary(shape)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(list(vocabulary))
    writer.add_token_types([gguf.TokenType.NORMAL] * len(vocabulary))
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    writer.add_eos_token_id(0)
    random = np.random.default_rng(seed)
    for name, sizes in shape.matrices():
        one = kind if kind is Kind.BF16 or name != "token_embd" else Kind.Q6_K
        writer.add_tensor(f"{name}.weight", _random_blocks(one, sizes, random), raw_dtype=one)
    for name in shape.norms():
        writer.add_tensor(f"{name}.weight", np.ones(shape.hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _random_blocks(
    kind: Kind, sizes: tuple[int, int], random: np.random.Generator
) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Rows of blocks: random integers and chosen scales, or normal numbers in bfloat16."""
    if kind is Kind.BF16:
        numbers = random.standard_normal(sizes, np.float32) * np.float32(0.02)
        return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    shape = (math.prod(sizes) // block_size, block_bytes)
    blocks = random.integers(0, 256, shape, dtype=np.uint8)
    for offset, factor in _FACTORS[kind].items():
        blocks[:, offset : offset + 2] = np.frombuffer(np.float16(factor).tobytes(), np.uint8)
    return blocks.reshape(sizes[0], -1)


def _vocabulary(shape: Shape) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Ids of tokens, and merges: all bytes, all pairs of them, then triples."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = product(alphabet, alphabet)
    triples = ((left + right, last) for left, right, last in product(alphabet, alphabet, alphabet))
    merges = list(islice(chain(pairs, triples), shape.vocabulary - len(alphabet)))
    tokens = [*alphabet, *(left + right for left, right in merges)]
    return {token: index for index, token in enumerate(tokens)}, merges


def _config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": _NORM_EPS,
        "rope_theta": _ROPE_THETA,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": 0,
    }


def _transformers_name(name: str) -> str:
    top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    in_layer = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    if name in top:
        return f"{top[name]}.weight"
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{in_layer[part]}.weight"
