"""A tiny random SmolVLM with its tokenizer, and transformers' answers to chats."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

from .image_reference import ImageReference

TILE = 64
TOKENS_PER_TILE = 4
IMAGE, END = "<image>", "<end_of_utterance>"
SPECIAL = (
    "<|im_start|>",
    END,
    "<fake_token_around_image>",
    IMAGE,
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""The template of SmolVLM's instruct models."""
_IMAGES: Mapping[str, Any] = {
    "size": {"longest_edge": 4 * TILE},
    "max_image_size": {"longest_edge": TILE},
    "do_image_splitting": True,
    "do_resize": True,
    "do_convert_rgb": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_pad": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "rescale_factor": 1 / 255,
    "resample": 1,
}


def write_model(folder: Path, seed: int = 0, *, head_size: int = 16, tile: int = TILE) -> Path:
    """Write the model's files, and return their folder. `tile`: the side of a tile, in pixels."""
    tokenizer = write_tokenizer(folder)
    config = transformers.SmolVLMConfig(
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": head_size,
            "max_position_embeddings": 2048,
            "pad_token_id": 0,
            "bos_token_id": None,
            "eos_token_id": None,
        },
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": tile,
            "patch_size": tile // 4,
        },
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        scale_factor=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = transformers.SmolVLMForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # large enough that images change the answers
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * 2 / parameter[0].numel() ** 0.5)
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    model.save_pretrained(folder)
    sides = {"size": {"longest_edge": 4 * tile}, "max_image_size": {"longest_edge": tile}}
    (folder / "preprocessor_config.json").write_text(json.dumps({**_IMAGES, **sides}))
    processor = {"processor_class": "SmolVLMProcessor", "image_seq_len": TOKENS_PER_TILE}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder


def write_tokenizer(
    folder: Path,
    *,
    marks_special: bool = True,
    special: Sequence[str] = SPECIAL,
    template: str = TEMPLATE,
    **options: Any,
) -> Any:
    """Write a tokenizer with a token for each byte, for two line ends, as in SmolVLM, and for
    three, as in Gemma 3."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {"<unk>": 0} | {letter: number for number, letter in enumerate(letters, 1)}
    words |= {"ĊĊ": len(words), "ĊĊĊ": len(words) + 1}
    merges = [("Ċ", "Ċ"), ("ĊĊ", "Ċ")]
    backend = Tokenizer(BPE(words, merges=merges, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    add = backend.add_special_tokens if marks_special else backend.add_tokens
    add(list(special))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<unk>", chat_template=template, **options
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def picture(seed: int, width: int, height: int) -> Image.Image:
    """A random image."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png(image: Image.Image) -> bytes:
    """The bytes of a file with this image."""
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@cache
def make_reference(folder: Path) -> ImageReference:
    """transformers with the model in `folder`."""
    processor = Idefics3Processor(
        Idefics3ImageProcessorPil(**_IMAGES),
        transformers.AutoTokenizer.from_pretrained(folder),
        image_seq_len=TOKENS_PER_TILE,
        chat_template=TEMPLATE,
    )
    model = transformers.SmolVLMForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return ImageReference(model.eval(), processor, IMAGE)
