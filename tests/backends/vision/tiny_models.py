"""Tiny random models that read images, written by transformers, which are the oracle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

CLASSES = {
    "idefics3": (transformers.Idefics3Config, transformers.Idefics3ForConditionalGeneration),
    "smolvlm": (transformers.SmolVLMConfig, transformers.SmolVLMForConditionalGeneration),
}
PATCH = 8
PLACEHOLDER = 500
VOCAB_SIZE = 512
MEAN, STD = (0.48, 0.45, 0.4), (0.26, 0.25, 0.27)
RESCALE = 1 / 255


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A model in float32, and its directory."""

    path: Path
    model: Any
    side: int
    """Of an image with the most patches, in pixels."""
    factor: int
    """Patches per row and column that become one token."""

    def tokens_of(self, side: int) -> int:
        """The number of tokens of a square image; `side` is in pixels."""
        return (side // PATCH // self.factor) ** 2

    def rows(self, pixels_yxc: torch.Tensor) -> torch.Tensor:
        """What stands in the places of an image's tokens, computed in the model's type."""
        with torch.inference_mode():
            found = self.model.model.get_image_features(normalized([pixels_yxc]), return_dict=True)
        rows: torch.Tensor = found.pooler_output[0]
        return rows

    def generate(
        self, prompt: Sequence[int], images: Sequence[torch.Tensor], num_tokens: int
    ) -> tuple[int, ...]:
        """The greedy answer."""
        given = {"pixel_values": normalized(images)} if images else {}
        with torch.no_grad():
            found = self.model.generate(
                input_ids=torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt)),
                do_sample=False,
                max_new_tokens=num_tokens,
                **given,
            )
        return tuple(found[0, len(prompt) :].tolist())


def write_model(folder: Path, kind: str, *, side: int = 32, factor: int = 2) -> TinyModel:
    """Make a model of one of CLASSES."""
    config_class, model_class = CLASSES[kind]
    config = config_class(
        text_config={
            "model_type": "llama",
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "pad_token_id": 0,
            "bos_token_id": None,
            "eos_token_id": None,
        },
        vision_config={
            "hidden_size": 48,
            "intermediate_size": 80,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "image_size": side,
            "patch_size": PATCH,
        },
        image_token_id=PLACEHOLDER,
        scale_factor=factor,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = model_class(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # large, so that images change tokens
            scale = 1.5 / parameter[0].numel() ** 0.5 if parameter.ndim > 1 else 0.3
            parameter.add_(torch.randn_like(parameter) * scale)
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    model.save_pretrained(folder)
    images = {
        "size": {"longest_edge": 2 * side},
        "max_image_size": {"longest_edge": side},
        "image_mean": MEAN,
        "image_std": STD,
        "rescale_factor": RESCALE,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    return TinyModel(folder, model, side, factor)


def picture(side: int, seed: int) -> torch.Tensor:
    """Random pixels, uint8 [y, x, c]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (side, side, 3), dtype=torch.uint8, generator=generator)


def normalized(images: Sequence[torch.Tensor]) -> torch.Tensor:
    """The numbers that transformers' processors make of pixels: [1, images, c, y, x]."""
    pixels = torch.stack(list(images)).to(torch.float64)
    numbers = ((pixels * RESCALE).float() - torch.tensor(MEAN)) / torch.tensor(STD)
    return numbers.permute(0, 3, 1, 2)[None]
