"""Writes the two GGUF files of a tiny SmolVLM or Gemma 3, as llama.cpp's converter does."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file, save_file

from tests.backends.weights.gguf_converting import convert_to_gguf
from tests.backends.weights.gguf_writing import write_gguf
from tokenmill.backends.weights.checkpoint import open_checkpoint

NAMES = {
    "model.vision_model.embeddings.patch_embedding": "v.patch_embd",
    "model.vision_model.embeddings.position_embedding": "v.position_embd",
    "model.vision_model.post_layernorm": "v.post_ln",
    "model.connector.modality_projection.proj": "mm.model.fc",
    "vision_tower.embeddings.patch_embedding": "v.patch_embd",
    "vision_tower.embeddings.position_embedding": "v.position_embd",
    "vision_tower.post_layernorm": "v.post_ln",
    "multi_modal_projector.mm_soft_emb_norm": "mm.soft_emb_norm",
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
LAYERS = re.compile(r"(?:model\.vision_model|vision_tower)\.encoder\.layers\.(\d+)\.(.+)")
_VISION = ("vision_model", "connector", "vision_tower", "multi_modal_projector")


def write_text_model(directory: Path, path: Path) -> None:
    """The text model of a directory as a GGUF file, with the tokens of its tokenizer."""
    write_gguf(path, open_checkpoint(directory))
    replace_tokens(path, tokens_of(directory))


def write_text_model_of_gemma3(directory: Path, path: Path) -> None:
    """The same of a tiny Gemma 3, without the token that converters leave out."""
    own = path.with_name("text-model")
    own.mkdir()
    config = json.loads((directory / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(config["text_config"]))
    stored = load_file(directory / "model.safetensors")
    prefix = "language_model."
    text = {n.removeprefix(prefix): t for n, t in stored.items() if n.startswith(prefix)}
    save_file(text, own / "model.safetensors")
    tokens = tokens_of(directory)
    tokens[config["image_token_index"]] = "<unused0>"
    tokens[0] = "<pad>"
    replace_tokens(convert_to_gguf(own, path), tokens, "gemma3")


def tokens_of(directory: Path) -> list[str]:
    """The tokens of a tokenizer, by id."""
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"] | {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    return sorted(ids, key=lambda token: ids[token])


def replace_tokens(path: Path, tokens: list[str], architecture: str = "llama") -> None:
    """Write the file again with other tokens: the writer of tests has three."""
    reader = gguf.GGUFReader(path)
    copy = path.with_suffix(".copy")
    writer = gguf.GGUFWriter(copy, architecture)
    for name, field in reader.fields.items():
        if name.startswith(("GGUF.", "general.architecture", "tokenizer.")):
            continue
        writer.add_key_value(name, field.contents(), field.types[0])
    writer.add_token_list(tokens)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    _write(writer)
    copy.rename(path)


def write_mmproj_of_gemma3(
    directory: Path, path: Path, changes: Mapping[str, Any] | None = None
) -> None:
    """As `write_mmproj`, of a tiny Gemma 3."""
    vision = json.loads((directory / "config.json").read_text())["vision_config"]
    of_kind = {"clip.projector_type": "gemma3", "clip.vision.projector.scale_factor": 2}
    _write_mmproj(directory, path, vision, of_kind | dict(changes or {}))


def write_mmproj(directory: Path, path: Path, changes: Mapping[str, Any] | None = None) -> None:
    """The vision part of a directory as a GGUF file; `changes` replace metadata."""
    config = json.loads((directory / "config.json").read_text())
    images = json.loads((directory / "preprocessor_config.json").read_text())
    of_kind = {
        "clip.projector_type": "idefics3",
        "clip.vision.preproc_image_size": images["size"]["longest_edge"],
        "clip.vision.projector.scale_factor": config["scale_factor"],
    }
    _write_mmproj(directory, path, config["vision_config"], of_kind | dict(changes or {}))


def _write_mmproj(
    directory: Path, path: Path, vision: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    images = json.loads((directory / "preprocessor_config.json").read_text())
    values: dict[str, Any] = {
        "clip.has_vision_encoder": True,
        "clip.use_gelu": True,
        "clip.vision.image_size": vision["image_size"],
        "clip.vision.patch_size": vision["patch_size"],
        "clip.vision.embedding_length": vision["hidden_size"],
        "clip.vision.feed_forward_length": vision["intermediate_size"],
        "clip.vision.block_count": vision["num_hidden_layers"],
        "clip.vision.attention.head_count": vision["num_attention_heads"],
        "clip.vision.attention.layer_norm_epsilon": vision["layer_norm_eps"],
        "clip.vision.image_mean": images["image_mean"],
        "clip.vision.image_std": images["image_std"],
    }
    writer = gguf.GGUFWriter(path, "clip")
    for key, value in (values | dict(changes)).items():
        _add(writer, key, value)
    for name, tensor in load_file(directory / "model.safetensors").items():
        if any(part in name for part in _VISION):
            added = 1.0 if "soft_emb_norm" in name else 0.0
            writer.add_tensor(_named(name), (tensor.float() + added).numpy())
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
    if name.endswith("mm_input_projection_weight"):
        return "mm.input_projection.weight"
    stem, _, kind = name.rpartition(".")
    if (layer := LAYERS.fullmatch(stem)) is not None:
        return f"v.blk.{layer[1]}.{PARTS[layer[2]]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def rows_of(tower: Any, seed: int, side: int) -> torch.Tensor:
    """The rows of a random image."""
    pixels = torch.randint(
        256, (side, side, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    rows: torch.Tensor = tower.encode(pixels[None])[0]
    return rows
