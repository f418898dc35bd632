"""A tiny random Mistral 3 with its tokenizer, and transformers' answers to chats with images."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.pixtral import image_processing_pil_pixtral as pil

from .image_reference import ImageReference
from .tiny_smolvlm import write_tokenizer

LONGEST = 96
"""The longer side of the largest image, in pixels."""
PATCH, MERGE = 8, 2
IMAGE, BREAK, END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
SPECIAL = ("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
           IMAGE, BREAK, END)  # fmt: skip
TEMPLATE = """{{ bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {%- if message['content'] is string %}
            {{- '[INST]' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST]' }}
            {%- for block in message['content'] %}
                {%- if block['type'] == 'text' %}
                    {{- block['text'] }}
                {%- elif block['type'] in ['image', 'image_url'] %}
                    {{- '[IMG]' }}
                {%- else %}
                    {{- raise_exception('Only text and image blocks are supported!') }}
                {%- endif %}
            {%- endfor %}
            {{- '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'system' %}
        {{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}
    {%- elif message['role'] == 'assistant' %}
        {%- if message['content'] is string %}
            {{- message['content'] + eos_token }}
        {%- else %}
            {{- message['content'][0]['text'] + eos_token }}
        {%- endif %}
    {%- else %}
        {{- raise_exception('Only user, system and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}"""
"""The template of Mistral Small 3.1, without its default system prompt."""
_IMAGES: Mapping[str, Any] = {
    "size": {"longest_edge": LONGEST},
    "patch_size": {"height": PATCH, "width": PATCH},
    "do_convert_rgb": True,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "rescale_factor": 1 / 255,
    "resample": 3,
}
_PROCESSOR: Mapping[str, Any] = {
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "image_token": IMAGE,
    "image_break_token": BREAK,
    "image_end_token": END,
}


def _processor_class() -> Any:
    """PixtralProcessor. Its module imports a function from a module that needs torchvision. The
    processor with Pillow has the same function."""
    other = "transformers.models.pixtral.image_processing_pixtral"
    sys.modules[other] = pil
    try:
        from transformers.models.pixtral.processing_pixtral import PixtralProcessor
    finally:
        del sys.modules[other]
    return PixtralProcessor


def write_model(folder: Path, seed: int = 0, **fields: Any) -> Path:
    """Write the model's files, and return their folder. `fields` are those of Mistral3Config."""
    tokenizer = write_tokenizer(
        folder, special=SPECIAL, template=TEMPLATE, bos_token="<s>", eos_token="</s>"
    )
    number = tokenizer.convert_tokens_to_ids
    config = transformers.Mistral3Config(
        text_config={
            "model_type": "mistral",
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "sliding_window": None,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "pad_token_id": 0,
            "bos_token_id": number("<s>"),
            "eos_token_id": None,
            "tie_word_embeddings": False,
        },
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "image_size": LONGEST,
            "patch_size": PATCH,
            "hidden_act": "silu",
        },
        image_token_index=number(IMAGE),
        spatial_merge_size=MERGE,
        tie_word_embeddings=False,
        **fields,
    )
    torch.manual_seed(seed)
    model = transformers.Mistral3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # images change the answers
            gain = 2 if "language_model" in name else 1  # a larger one magnifies rounding, too
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * gain / parameter[0].numel() ** 0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(_IMAGES))
    processor = {"processor_class": "PixtralProcessor", **_PROCESSOR}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder


@cache
def make_reference(folder: Path) -> ImageReference:
    """transformers with the model in `folder`."""
    processor = _processor_class()(
        pil.PixtralImageProcessorPil(**_IMAGES),
        transformers.AutoTokenizer.from_pretrained(folder),
        chat_template=TEMPLATE,
        **_PROCESSOR,
    )
    model = transformers.Mistral3ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return ImageReference(model.eval(), processor, IMAGE)
