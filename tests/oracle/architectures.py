"""Tiny random models of every native architecture, written by transformers itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from ..backends.weights.gguf_converting import convert_to_gguf

SIZES: Mapping[str, Any] = {
    "vocab_size": 192,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
WINDOW = 24
"""Tokens: shorter than most prompts, and no multiple of a block size."""
_OWN_HEADS = {"head_dim": 32}
_GEMMA = {
    **_OWN_HEADS,
    "sliding_window": WINDOW,
    "query_pre_attn_scalar": 32,
    "tie_word_embeddings": True,
}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 128,
    "patch_size": 8,
}
_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
_LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}
_PHI4_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 5.0, 8.0],
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """One tiny model."""

    family: str
    """Class names of transformers without "Config" and "ForCausalLM"."""
    changes: Mapping[str, Any]
    has_gguf: bool = True
    """GGUF files can express it."""
    within: str | None = None
    """The family of the multimodal model that contains it."""

    @property
    def is_gemma(self) -> bool:
        return self.family.startswith("Gemma")

    def make(self) -> Any:
        """Make transformers' model: norms near 1, hidden states near 1, and distant logits."""
        model = self._make_class()
        generator = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                mean, std = self._distribution(name, parameter)
                parameter.normal_(mean, std, generator=generator)
        return model

    def config(self) -> Any:
        """Return transformers' configuration."""
        config = getattr(transformers, f"{self.family}Config")(**{**SIZES, **self.changes})
        if self.within is None:
            return config
        whole = {
            "text_config": config.to_dict(),
            "vision_config": _VISION,
            "tie_word_embeddings": config.tie_word_embeddings,
        }
        return getattr(transformers, f"{self.within}Config")(**whole)

    def _make_class(self) -> Any:
        name = f"{self.family.removesuffix('Text')}ForCausalLM"
        if self.within is not None:
            name = f"{self.within}ForConditionalGeneration"
        model = getattr(transformers, name)(self.config()).eval()
        model.generation_config.eos_token_id = None  # each continuation gets its full length
        return model

    def _distribution(self, name: str, parameter: torch.Tensor) -> tuple[float, float]:
        if "norm" in name:
            return (0.0 if self.is_gemma else 1.0), 0.1
        if "sinks" in name:
            return 1.0, 1.0
        if parameter.dim() == 1 or "bias" in name:
            return 0.0, 0.1
        if "embed" in name or "lm_head" in name:
            # Gemma multiplies its embeddings by 8. Larger ones would repeat the last token.
            return 0.0, (0.5 if self.is_gemma else 2.0) * parameter.shape[-1] ** -0.5
        gain = 2.0 if "q_proj" in name or "k_proj" in name else 1.0
        return 0.0, gain * parameter.shape[-1] ** -0.5


MODELS: Mapping[str, Model] = {
    "llama": Model(family="Llama", changes={}),
    "llama, linear": Model(family="Llama", changes={"rope_parameters": _LINEAR}),
    "mistral": Model(family="Mistral", changes={"sliding_window": WINDOW}, has_gguf=False),
    "qwen2": Model(family="Qwen2", changes={}),
    "qwen2, a window in two layers": Model(
        family="Qwen2",
        changes={
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 2,
        },
        has_gguf=False,
    ),
    "qwen3": Model(family="Qwen3", changes=_OWN_HEADS),
    "gemma2": Model(
        family="Gemma2",
        changes=_GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.0},
    ),
    "gemma3": Model(
        family="Gemma3Text",
        changes=_GEMMA
        | {
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": _LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma3, multimodal": Model(
        family="Gemma3Text", within="Gemma3", changes=_GEMMA | {"num_hidden_layers": 7}
    ),
    "mistral, multimodal": Model(family="Mistral", within="Mistral3", changes=_OWN_HEADS),
    "phi3": Model(family="Phi3", changes={"sliding_window": WINDOW}),
    "phi4-mini": Model(
        family="Phi3",
        changes={
            "rope_parameters": _PHI4_ROPE,
            "original_max_position_embeddings": 192,
            "tie_word_embeddings": True,
        },
    ),
    "smollm3": Model(family="SmolLM3", changes={"num_hidden_layers": 5}),
    "mixtral": Model(family="Mixtral", changes=_EXPERTS | {"sliding_window": None}),
    "mixtral, window": Model(
        family="Mixtral", changes=_EXPERTS | {"sliding_window": WINDOW}, has_gguf=False
    ),
    "qwen3-moe": Model(
        family="Qwen3Moe",
        changes=_OWN_HEADS
        | {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe, shares as they are": Model(
        family="Qwen3Moe",
        changes=_OWN_HEADS
        | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32},
        has_gguf=False,
    ),
    "olmoe": Model(family="Olmoe", changes={"num_experts": 8, "num_experts_per_tok": 3}),
    "gpt-oss": Model(
        family="GptOss",
        changes=_OWN_HEADS
        | _EXPERTS
        | {
            "sliding_window": WINDOW,
            "intermediate_size": 64,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "truncate": False,
            },
        },
    ),
    "smollm3, windows": Model(
        family="SmolLM3",
        changes={
            "no_rope_layers": [0, 1, 1, 0],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
        },
        has_gguf=False,
    ),
}


def write(name: str, folder: Path) -> tuple[Any, list[Path]]:
    """Write a model as a directory, and as a GGUF file if it can be; return transformers' model
    and the paths. A multimodal model is written as two directories, with old and new names."""
    model = MODELS[name].make()
    model.save_pretrained(folder / "model")
    paths = [folder / "model"]
    if MODELS[name].within is not None:
        model.save_pretrained(folder / "new names", save_original_format=False)
        paths.append(folder / "new names")
    elif MODELS[name].has_gguf:
        paths.append(convert_to_gguf(folder / "model", folder / "model.gguf"))
    return model, paths
