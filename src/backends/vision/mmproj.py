"""Reads llama.cpp's files with the vision part of a model (`mmproj`), as those of a directory.

Source: `convert_hf_to_gguf.py` of llama.cpp, which writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...core.errors import ConfigError
from ..weights.config.fields import Fields
from ..weights.files.model_path import PROJECTOR
from ..weights.gguf.checkpoint import GGUFCheckpoint
from ..weights.gguf.file import GGUFFile, read_gguf_file
from ..weights.gguf.tensors import GGUFTensors
from ..weights.packed import StoredTensor
from .siglip.config import GEMMA3
from .source import NoVision, VisionSource

IDEFICS3 = "idefics3"
_IMAGE_TOKENS = {IDEFICS3: ("<image>",), GEMMA3: ("<image_soft_token>", "<pad>")}
"""By type of projector, the token in the places of rows: the first that the model has. Converters
leave out Gemma 3's own, and no text has its padding."""
_SHOWN = "<start_of_image>"
"""The token that Gemma 3's chat template writes once per image."""
_POOLED_PER_SIDE = 4
"""Patches per side that become one row of Gemma 3, where a file does not say it."""
_POOLED_NORM = "multi_modal_projector.mm_soft_emb_norm.weight"
_ENDS = {
    "v.patch_embd": "vision_model.embeddings.patch_embedding",
    "v.position_embd": "vision_model.embeddings.position_embedding",
    "v.post_ln": "vision_model.post_layernorm",
    "mm.model.fc": "connector.modality_projection.proj",
    "mm.soft_emb_norm": "multi_modal_projector.mm_soft_emb_norm",
}
_WHOLE = {"mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight"}
_LAYER = {
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_BLOCK = re.compile(r"v\.blk\.(\d+)\.(\w+)")


def find_mmproj(model: Path, given: str | None) -> Path | None:
    """Find the file with a GGUF model's vision part: the given one, or the only one in its folder.

    Raises ConfigError if the given one does not exist.
    """
    if given is not None:
        path = Path(given).expanduser()
        if not path.is_file():
            raise ConfigError(f"--mmproj {given}: no such file")
        return path
    found = sorted(model.parent.glob(f"{PROJECTOR}*.gguf"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise NoVision(f"there are several files for images: give one as --mmproj ({names})")
    return found[0] if found else None


def read_mmproj(path: Path, text: GGUFCheckpoint) -> VisionSource:
    """Describe the vision part in the words of a directory.

    Raises ConfigError for a damaged file, and NoVision for another kind of model.
    """
    file = read_gguf_file(path)
    clip = Fields(file.metadata, str(path))
    kind = clip.text("clip.vision.projector_type", clip.text("clip.projector_type", ""))
    if kind not in _IMAGE_TOKENS:
        known = " or ".join(_IMAGE_TOKENS)
        raise NoVision(f"{path.name} has a projector of type {kind!r:.40}, not {known}")
    tile = clip.integer("clip.vision.image_size")
    activation = "gelu_pytorch_tanh" if clip.flag("clip.use_gelu", False) else ""
    fields = {
        "model_type": kind,
        **(_of_gemma3(clip, text) if kind == GEMMA3 else _of_idefics3(clip, text)),
        "text_config": _text_sizes(text),
        "vision_config": {
            "hidden_size": clip.integer("clip.vision.embedding_length"),
            "intermediate_size": clip.integer("clip.vision.feed_forward_length"),
            "num_hidden_layers": clip.integer("clip.vision.block_count"),
            "num_attention_heads": clip.integer("clip.vision.attention.head_count"),
            "layer_norm_eps": clip.number("clip.vision.attention.layer_norm_epsilon"),
            "image_size": tile,
            "patch_size": clip.integer("clip.vision.patch_size"),
            "hidden_act": activation,
        },
        "image_mean": list(clip.numbers("clip.vision.image_mean")),
        "image_std": list(clip.numbers("clip.vision.image_std")),
    }
    return VisionSource(fields=fields, files=MmprojTensors(file), source=str(path))


def _text_sizes(text: GGUFCheckpoint) -> Mapping[str, Any]:
    """Fields on which the cost of an image depends, besides the tower."""
    config = text.config
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "vocab_size": config.vocab_size,
    }


def _of_idefics3(clip: Fields, text: GGUFCheckpoint) -> Mapping[str, Any]:
    tile = clip.integer("clip.vision.image_size")
    return {
        "image_token_id": _token(text, *_IMAGE_TOKENS[IDEFICS3])[0],
        "scale_factor": clip.integer("clip.vision.projector.scale_factor"),
        "max_image_size": {"longest_edge": tile},
        "size": {"longest_edge": clip.integer("clip.vision.preproc_image_size", tile)},
    }


def _of_gemma3(clip: Fields, text: GGUFCheckpoint) -> Mapping[str, Any]:
    side, patch = (clip.integer(f"clip.vision.{name}_size") for name in ("image", "patch"))
    factor = clip.integer("clip.vision.projector.scale_factor", _POOLED_PER_SIDE)
    if min(side, patch, factor) < 1 or (side // patch) % factor:
        raise ConfigError(f"{clip.source}: image_size, patch_size and scale_factor do not fit")
    image_token_id, image_token = _token(text, *_IMAGE_TOKENS[GEMMA3])
    return {
        "image_token_id": image_token_id,
        "image_token": image_token,
        "boi_token_id": _token(text, _SHOWN)[0],
        "mm_tokens_per_image": (side // patch // factor) ** 2,
    }


def _token(text: GGUFCheckpoint, *names: str) -> tuple[int, str]:
    """The first of these tokens that the model has. Raises NoVision without any."""
    tokens = text.metadata.get("tokenizer.ggml.tokens")
    for name in names:
        if isinstance(tokens, list) and name in tokens:
            return tokens.index(name), name
    raise NoVision(f"{text.path.name} has no token {' or '.join(names)}")


class MmprojTensors:
    """The tensors of an mmproj file, with the names of `tower_tensor`; see TowerFiles."""

    def __init__(self, file: GGUFFile) -> None:
        self.path = file.path
        self._tensors = {_named(name): tensor for name, tensor in file.tensors.items()}
        self._read = GGUFTensors()

    def stored(self, name: str) -> StoredTensor:
        """Describe a tensor. Raises ConfigError if it is missing."""
        if name not in self._tensors:
            raise ConfigError(f"{self.path} lacks the tensor {name}")
        tensor = self._tensors[name]
        return StoredTensor(tensor.shape, torch.float32, tensor.num_bytes)

    def tensor(self, name: str) -> torch.Tensor:
        """Read a tensor in float32. Raises ConfigError if it is of an unsupported type."""
        found = self._read.dequantized(name, self._tensors[name])
        return found - 1.0 if name == _POOLED_NORM else found  # the converter has added it

    def release(self) -> None:
        """Let go of the mapped file."""
        self._read.release()


def _named(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if (block := _BLOCK.fullmatch(stem)) is not None and block[2] in _LAYER:
        return f"vision_model.encoder.layers.{block[1]}.{_LAYER[block[2]]}.{kind}"
    return _WHOLE.get(name) or f"{_ENDS.get(stem, stem)}.{kind}"
