"""The processor of Gemma 3 makes what transformers' processor makes."""

from __future__ import annotations

import re
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from tokenmill.backends.media.decoding import decode
from tokenmill.backends.media.gemma3.processor import Gemma3Processor
from tokenmill.core.errors import ConfigError

from .image_files import SIZES, files, noise, saved
from .oracle import Tiles, ours

MAX_PIXELS = 1 << 20
CONFIG: dict[str, Any] = {
    "model_type": "gemma3",
    "vision_config": {"patch_size": 8, "image_size": 64},
    "mm_tokens_per_image": 16,
    "size": {"height": 64, "width": 64},
    "do_convert_rgb": None,
    "do_pan_and_scan": None,
}


def theirs(data: bytes, config: dict[str, Any]) -> Tiles:
    """The pixels of transformers' processor, from the bytes of a file."""
    settings = {name: config[name] for name in ("size", "resample") if name in config}
    # Without scaling, which the encoder does, pixels stay whole numbers.
    made = Gemma3ImageProcessorPil(**settings, do_rescale=False, do_normalize=False)
    image = ImageOps.exif_transpose(Image.open(BytesIO(data)))
    pixels = np.moveaxis(made(image, return_tensors="np")["pixel_values"], 1, -1)
    assert (pixels == pixels.astype(np.uint8)).all()
    return pixels.astype(np.uint8)


def check_files(number: int, seed: int) -> None:
    processor = Gemma3Processor(CONFIG, {})
    for file in files(number, seed=seed):
        found = ours(processor.process(decode(file.data, MAX_PIXELS)))
        assert np.array_equal(found, theirs(file.data, CONFIG)), file.name


def test_pixels_equal_those_of_transformers_for_files_of_every_kind() -> None:
    check_files(69, seed=0)


@pytest.mark.soak
def test_pixels_of_500_files_equal_those_of_transformers() -> None:
    check_files(500, seed=1)


@pytest.mark.parametrize("resample", [0, 1, 3])
def test_the_filter_is_the_one_of_the_model(resample: int) -> None:
    config = CONFIG | {"resample": resample}
    image = noise(np.random.default_rng(0), (90, 40))
    found = ours(Gemma3Processor(config, {}).process(image))
    assert np.array_equal(found, theirs(saved(image, "PNG"), config))


def test_an_image_of_any_size_is_one_item_whose_tokens_see_each_other() -> None:
    processor = Gemma3Processor(CONFIG, {})
    for size in SIZES:
        made = processor.process(Image.new("RGB", size))
        [item] = made.items
        assert item.is_whole and item.num_tokens == processor.num_tokens(*size) == 16
        assert made.text == "<start_of_image>" + 16 * "<image_soft_token>" + "<end_of_image>"


def test_an_image_of_gemma_3_4b_costs_as_much_as_some_hundred_tokens() -> None:
    """5.4 TFLOP against 6.4 GFLOP per token."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    vision = {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
    }
    config = {"model_type": "gemma3", "text_config": text, "vision_config": vision}
    [item] = Gemma3Processor(config, {}).process(Image.new("RGB", (3, 2))).items
    assert (item.num_tokens, item.shape) == (256, (896, 896, 3))
    assert 800 < item.cost < 900


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "there is no 'do_pan_and_scam'. Did you mean": ({}, {"do_pan_and_scam": True}),
    "do_pan_and_scan is true, which is not supported": ({"do_pan_and_scan": True}, {}),
    "do_resize is false": ({"do_resize": False}, {}),
    "size must be the encoder's, 64 x 64": ({"size": {"height": 64, "width": 32}}, {}),
    "8 x 8 patches cannot become 9 tokens": ({"mm_tokens_per_image": 9}, {}),
    "mm_tokens_per_image is 16, but the model's files say 256": ({"image_seq_length": 256}, {}),
    "resample must be": ({"resample": 9}, {}),
    "image_token must be a text": ({"image_token": 3}, {}),
}


@pytest.mark.parametrize("why", REFUSED)
def test_settings_that_it_cannot_follow_are_refused(why: str) -> None:
    changes, kwargs = REFUSED[why]
    with pytest.raises(ConfigError, match=re.escape(why)):
        Gemma3Processor(CONFIG | changes, kwargs)


def test_pan_and_scan_can_be_switched_off() -> None:
    config = CONFIG | {"do_pan_and_scan": True}
    assert Gemma3Processor(config, {"do_pan_and_scan": False}).num_tokens(900, 30) == 16


def test_it_does_not_fit_other_models() -> None:
    assert Gemma3Processor.reasons_against(CONFIG) == []
    assert "'smolvlm'" in Gemma3Processor.reasons_against(CONFIG | {"model_type": "smolvlm"})[0]
