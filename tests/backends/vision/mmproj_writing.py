"""Writes the two GGUF files of a tiny SmolVLM, as llama.cpp's converter does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file

from tests.backends.weights.gguf_writing import write_gguf
from tokenmill.backends.weights.checkpoint import open_checkpoint

NAMES = {
    "model.vision_model.embeddings.patch_embedding": "v.patch_embd",
    "model.vision_model.embeddings.position_embedding": "v.position_embd",
    "model.vision_model.post_layernorm": "v.post_ln",
    "model.connector.modality_projection.proj": "mm.model.fc",
}
PARTS = {
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
LAYERS = "model.vision_model.encoder.layers."


def write_text_model(directory: Path, path: Path) -> None:
    """The text model of a directory as a GGUF file, with the tokens of its tokenizer."""
    write_gguf(path, open_checkpoint(directory))
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"] | {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    _replace_tokens(path, sorted(ids, key=lambda token: ids[token]))


def _replace_tokens(path: Path, tokens: list[str]) -> None:
    """Write the file again with other tokens: the writer of tests has three."""
    reader = gguf.GGUFReader(path)
    copy = path.with_suffix(".copy")
    writer = gguf.GGUFWriter(copy, "llama")
    for name, field in reader.fields.items():
        if name.startswith(("GGUF.", "general.architecture", "tokenizer.")):
            continue
        writer.add_key_value(name, field.contents(), field.types[0])
    writer.add_token_list(tokens)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    _write(writer)
    copy.rename(path)


def write_mmproj(directory: Path, path: Path, changes: Mapping[str, Any] | None = None) -> None:
    """The vision part of a directory as a GGUF file; `changes` replace metadata."""
    config = json.loads((directory / "config.json").read_text())
    images = json.loads((directory / "preprocessor_config.json").read_text())
    vision = config["vision_config"]
    values: dict[str, Any] = {
        "clip.has_vision_encoder": True,
        "clip.projector_type": "idefics3",
        "clip.use_gelu": True,
        "clip.vision.image_size": vision["image_size"],
        "clip.vision.preproc_image_size": images["size"]["longest_edge"],
        "clip.vision.patch_size": vision["patch_size"],
        "clip.vision.embedding_length": vision["hidden_size"],
        "clip.vision.feed_forward_length": vision["intermediate_size"],
        "clip.vision.block_count": vision["num_hidden_layers"],
        "clip.vision.attention.head_count": vision["num_attention_heads"],
        "clip.vision.attention.layer_norm_epsilon": vision["layer_norm_eps"],
        "clip.vision.projector.scale_factor": config["scale_factor"],
        "clip.vision.image_mean": images["image_mean"],
        "clip.vision.image_std": images["image_std"],
    }
    writer = gguf.GGUFWriter(path, "clip")
    for key, value in (values | dict(changes or {})).items():
        _add(writer, key, value)
    for name, tensor in load_file(directory / "model.safetensors").items():
        if "vision_model" in name or "connector" in name:
            writer.add_tensor(_named(name), tensor.float().numpy())
    _write(writer)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, list):
        writer.add_array(key, [float(number) for number in value])
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _named(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith(LAYERS):
        number, _, part = stem.removeprefix(LAYERS).partition(".")
        return f"v.blk.{number}.{PARTS[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def rows_of(tower: Any, seed: int, side: int) -> torch.Tensor:
    """The rows of a random image."""
    pixels = torch.randint(
        256, (side, side, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    rows: torch.Tensor = tower.encode(pixels[None])[0]
    return rows
