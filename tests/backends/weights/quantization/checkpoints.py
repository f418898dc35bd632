"""Checkpoints with quantized matrices: a single one, or all of a tiny Llama."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.backends.random_weights import random_checkpoint
from tests.backends.tiny_checkpoints import TARGET
from tokenmill.backends.distill.saving import to_hf_config
from tokenmill.backends.weights.checkpoint import open_checkpoint
from tokenmill.backends.weights.huggingface.checkpoint import SafetensorsCheckpoint

from .writers import Case

MODULE = "model.layers.0.self_attn.k_proj"
MATRIX = f"{MODULE}.weight"


def write_tensors(
    path: Path, tensors: dict[str, torch.Tensor], quantization: dict[str, Any] | None
) -> SafetensorsCheckpoint:
    """A checkpoint of these tensors, which need not be those of the configuration."""
    path.mkdir(exist_ok=True)
    config = to_hf_config(TARGET, ()) | {"dtype": "float32"}
    if quantization is not None:
        config["quantization_config"] = quantization
    (path / "config.json").write_text(json.dumps(config))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors"
    )
    checkpoint = open_checkpoint(path)
    assert isinstance(checkpoint, SafetensorsCheckpoint)
    return checkpoint


def write_llama(path: Path, case: Case) -> tuple[SafetensorsCheckpoint, dict[str, torch.Tensor]]:
    """A tiny Llama whose projections are quantized; also its dequantized tensors."""
    model = random_checkpoint(TARGET, 5)
    stored: dict[str, torch.Tensor] = {}
    dequantized: dict[str, torch.Tensor] = {}
    for name in model.tensor_names():
        dequantized[name] = model.tensor(name)
        if not name.endswith("_proj.weight"):
            stored[name] = dequantized[name]
            continue
        parts, dequantized[name] = case.write(dequantized[name])
        stored |= {name.removesuffix(".weight") + ending: part for ending, part in parts.items()}
    return write_tensors(path, stored, case.config), dequantized
