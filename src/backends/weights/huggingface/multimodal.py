"""Finds the text model in a multimodal one: its fields of config.json, and its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....core.errors import ConfigError
from ..config.architectures import BY_MULTIMODAL, Architecture
from ..config.fields import Fields

_SHARED = ("dtype", "torch_dtype", "eos_token_id", "quantization_config", "tie_word_embeddings")
"""Fields about the text model that may stand beside `text_config`, where they win, or in it."""
_PREFIXES = {
    "language_model.": "",
    "model.language_model.": "model.",
    "model.text_model.": "model.",
}
"""Beginnings of the names of the text model's tensors, and their replacements. transformers writes
the first; it and other programs have also written the second. The third is that of Idefics3."""
_OTHERS = ("vision_tower.", "multi_modal_projector.", "vision_model.", "connector.", "visual.")
"""Beginnings of the names of other tensors, in some files after `model.`."""


TOWERS = (
    "Gemma3ForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
)
"""transformers' class names of the models whose vision towers are computed here."""


_IN_LATER_LAYERS = ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")
"""transformers' class names of models that add images to the hidden states of later layers, too."""


def is_multimodal(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a multimodal model whose text model can be used alone."""
    return _text_row(config) is not None


def has_known_tower(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a model whose vision tower is computed here."""
    named = config.get("architectures")
    return isinstance(named, list) and bool(named) and named[0] in TOWERS


def text_fields(config: Mapping[str, Any], source: str) -> tuple[Mapping[str, Any], str]:
    """Return the fields of a multimodal model's text model, and where they stand.

    Other models have nothing else: all fields are returned. Raises ConfigError if `text_config` is
    missing or no object.
    """
    row = _text_row(config)
    if row is None:
        named = config.get("architectures")
        if isinstance(named, list) and named and named[0] in _IN_LATER_LAYERS:
            raise ConfigError(
                f"{source} describes {named[0]}, which adds images to later layers, too: it is not "
                "supported"
            )
        return config, source
    part = Fields(config, source).part("text_config")
    if part is None and row.may_lack_text_config:
        return {**config, "architectures": None, "model_type": row.model_type}, source
    if part is None:
        raise ConfigError(f"{source} lacks text_config, the sizes of the text model")
    fields = {**config["text_config"], "architectures": None}
    fields["model_type"] = part.get("model_type") or row.model_type
    shared = {name: config[name] for name in _SHARED if config.get(name) is not None}
    return fields | shared, part.source


def text_tensor(name: str) -> str | None:
    """Return the text model's name of a multimodal model's tensor; None: it is not part of it."""
    if name.removeprefix("model.").startswith(_OTHERS):
        return None
    for prefix, replacement in _PREFIXES.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def _text_row(config: Mapping[str, Any]) -> Architecture | None:
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named else None
    return BY_MULTIMODAL.get(name) if isinstance(name, str) else None
