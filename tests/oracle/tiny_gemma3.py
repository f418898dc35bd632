"""A tiny random Gemma 3 with its tokenizer, and transformers' answers to chats with images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

from .image_reference import ImageReference
from .tiny_smolvlm import write_tokenizer

SIDE = 64
PATCH = 8
TOKENS_PER_IMAGE = 16
"""8 x 8 patches, of which squares of 2 x 2 become one token."""
WINDOW = 11
"""Shorter than an image: its first tokens see its last ones, which do not see the first."""
BEGIN, IMAGE, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
SPECIAL = ("<bos>", "<start_of_turn>", "<end_of_turn>", BEGIN, END, IMAGE)
TEMPLATE = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
"""
"""The template of Gemma 3's instruct models."""
_IMAGES: Mapping[str, Any] = {
    "size": {"height": SIDE, "width": SIDE},
    "do_convert_rgb": None,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_pan_and_scan": None,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "rescale_factor": 1 / 255,
    "resample": 2,
}


ALTERNATING = ("sliding_attention", "full_attention") * 2


def write_model(folder: Path, seed: int = 0, layer_types: Sequence[str] = ALTERNATING) -> Path:
    """Write the model's files, and return their folder."""
    tokenizer = write_tokenizer(
        folder,
        special=SPECIAL,
        template=TEMPLATE,
        bos_token="<bos>",
        extra_special_tokens={"boi_token": BEGIN, "image_token": IMAGE, "eoi_token": END},
    )
    number = tokenizer.convert_tokens_to_ids
    config = transformers.Gemma3Config(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": len(layer_types),
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "layer_types": list(layer_types),
            "sliding_window": WINDOW,
            "max_position_embeddings": 2048,
            "pad_token_id": 0,
            "bos_token_id": number("<bos>"),
            "eos_token_id": None,
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": SIDE,
            "patch_size": PATCH,
            "vision_use_head": False,
        },
        mm_tokens_per_image=TOKENS_PER_IMAGE,
        image_token_index=number(IMAGE),
        boi_token_index=number(BEGIN),
        eoi_token_index=number(END),
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # large enough that images change the answers
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * 2 / parameter[0].numel() ** 0.5)
        for name, parameter in model.named_parameters():
            if "norm" in name and "vision_tower" not in name:  # it multiplies by 1 + weight
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(_IMAGES))
    processor = {"processor_class": "Gemma3Processor", "image_seq_length": TOKENS_PER_IMAGE}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder


@cache
def make_reference(folder: Path) -> ImageReference:
    """transformers with the model in `folder`."""
    processor = Gemma3Processor(
        Gemma3ImageProcessorPil(**_IMAGES),
        transformers.AutoTokenizer.from_pretrained(folder),
        image_seq_length=TOKENS_PER_IMAGE,
        chat_template=TEMPLATE,
    )
    model = transformers.Gemma3ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return ImageReference(model.eval(), processor, IMAGE)
