"""A tiny random Qwen2.5-VL with its tokenizer, and transformers' answers to chats with images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from .image_reference import ImageReference
from .tiny_smolvlm import write_tokenizer

PATCH = 8
UNIT = 2 * PATCH
"""The sides of a token's square, in pixels."""
BEGIN, IMAGE, END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", BEGIN, END, IMAGE, "<|video_pad|>")
TEMPLATE = """{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}\
{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}<|im_end|>
{% else %}{% for content in message['content'] %}\
{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}\
{% set image_count.value = image_count.value + 1 %}\
{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}\
<|vision_start|><|image_pad|><|vision_end|>\
{% elif content['type'] == 'video' or 'video' in content %}\
{% set video_count.value = video_count.value + 1 %}\
{% if add_vision_id %}Video {{ video_count.value }}: {% endif %}\
<|vision_start|><|video_pad|><|vision_end|>\
{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""The template of Qwen2.5-VL's instruct models."""
_IMAGES: Mapping[str, Any] = {
    "min_pixels": 2 * 2 * UNIT**2,
    "max_pixels": 5 * 5 * UNIT**2,
    "patch_size": PATCH,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def write_model(folder: Path, seed: int = 0, *, is_flat: bool = False) -> Path:
    """Write the model's files, and return their folder. `is_flat`: config.json has the fields of
    the text model beside all others, as the files of Qwen do."""
    tokenizer = write_tokenizer(folder, special=SPECIAL, template=TEMPLATE)
    number = tokenizer.convert_tokens_to_ids
    config = transformers.Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 3, 3],
            },
            "pad_token_id": 0,
            "bos_token_id": None,
            "eos_token_id": None,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "patch_size": PATCH,
            "window_size": 2 * UNIT,
            "fullatt_block_indexes": [1],
            "out_hidden_size": 64,
        },
        image_token_id=number(IMAGE),
        video_token_id=number("<|video_pad|>"),
        vision_start_token_id=number(BEGIN),
        vision_end_token_id=number(END),
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = transformers.Qwen2_5_VLForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # large enough that images change the answers
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * 2 / parameter[0].numel() ** 0.5)
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    model.save_pretrained(folder)
    if is_flat:
        _flatten(folder / "config.json")
    (folder / "preprocessor_config.json").write_text(json.dumps(_IMAGES))
    return folder


def _flatten(path: Path) -> None:
    fields = json.loads(path.read_text())
    text = fields.pop("text_config")
    rope = text.pop("rope_parameters")
    text["rope_theta"] = rope["rope_theta"]
    text["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    path.write_text(json.dumps(text | fields))


class Processor:
    """As transformers' Qwen2_5_VLProcessor, which needs torchvision for videos."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.images = Qwen2VLImageProcessorPil(**_IMAGES)

    def apply_chat_template(self, messages: Any, **options: Any) -> Any:
        return self.tokenizer.apply_chat_template(messages, tokenize=False, **options)

    def __call__(
        self, text: str, images: Sequence[Sequence[Image.Image]] | None, return_tensors: str
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if images:
            found |= self.images(list(images[0]), return_tensors=return_tensors)
        begin, *others = text.split(IMAGE)
        for grid, other in zip(found.get("image_grid_thw", ()), others, strict=True):
            begin += IMAGE * (int(grid.prod()) // 4) + other
        found |= self.tokenizer(begin, return_tensors=return_tensors)
        is_image = found["input_ids"] == self.tokenizer.convert_tokens_to_ids(IMAGE)
        return found | {"mm_token_type_ids": is_image.int()}


@cache
def make_reference(folder: Path) -> ImageReference:
    """transformers with the model in `folder`."""
    model = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return ImageReference(model.eval(), Processor(tokenizer), IMAGE)
