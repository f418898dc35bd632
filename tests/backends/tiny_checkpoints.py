"""Tiny models as Hugging Face directories, with a tokenizer: a target, and draft models for it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.distill.saving import to_hf_config
from tokenmill.backends.models.draft_head import DraftHeadConfig
from tokenmill.backends.weights.config.model_config import DRAFT_HEAD, ModelConfig
from tokenmill.backends.weights.draft_vocabulary import as_offsets

from .tiny import CONFIG

TARGET = replace(CONFIG, num_layers=3, head_size=16)  # the least that the native kernels take
DRAFT = replace(TARGET, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=32)
_END = "<end>"


def write_model(path: Path, config: ModelConfig, seed: int, *, swapped: bool = False) -> Path:
    """Random weights for the configuration; with `swapped`, two tokens of the vocabulary have
    changed places."""
    checkpoint = random_checkpoint(config, seed)
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.tensor_names()}
    path.mkdir()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    fields = to_hf_config(config, ()) | {"dtype": "float32"}
    (path / "config.json").write_text(json.dumps(fields))
    make_tokenizer(config.vocab_size, swapped=swapped).save(str(path / "tokenizer.json"))
    return path


def in_type(model: Path, dtype: torch.dtype, scale: float = 1.0) -> Path:
    """The model with its tensors in another type than config.json says."""
    file = model / "model.safetensors"
    save_file({k: (v * scale).to(dtype) for k, v in load_file(file).items()}, file)
    return model


def write_head(
    path: Path, target: ModelConfig, seed: int, *, draft_vocab_size: int = 96, inner: int = 48
) -> Path:
    """A draft head of random weights for a target of this configuration."""
    config = DraftHeadConfig(
        hidden_size=target.hidden_size,
        intermediate_size=inner,
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size,
        rms_norm_eps=target.rms_norm_eps,
    )
    noise = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(shape, generator=noise) / shape[-1] ** 0.5
        for name, shape in config.tensor_shapes.items()
    }
    chosen = torch.randperm(target.vocab_size, generator=noise)[:draft_vocab_size].sort().values
    path.mkdir()
    save_file(tensors | {"d2t": as_offsets(chosen)}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"model_type": DRAFT_HEAD} | asdict(config)))
    return path


def make_tokenizer(vocab_size: int, *, swapped: bool = False) -> Tokenizer:
    """Bytes, as far as the vocabulary goes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[: vocab_size - 1]
    if swapped:
        alphabet[40], alphabet[41] = alphabet[41], alphabet[40]
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(_END, special=True, normalized=False)])
    assert tokenizer.get_vocab_size() == vocab_size
    return tokenizer
