"""The processor of Mistral 3 makes what transformers' processor makes."""

from __future__ import annotations

import re
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from tokenmill.backends.media.decoding import decode
from tokenmill.backends.media.mistral3.processor import Mistral3Processor
from tokenmill.core.errors import ConfigError, InvalidRequestError

from .image_files import SIZES, files, noise, saved
from .oracle import Tiles, ours

MAX_PIXELS = 1 << 20
CONFIG: dict[str, Any] = {
    "model_type": "mistral3",
    "vision_config": {"patch_size": 8},
    "spatial_merge_size": 2,
    "size": {"longest_edge": 96},
}
WIDE = CONFIG | {"size": {"longest_edge": 4000}}
FLAT = CONFIG | {"size": {"height": 48, "width": 200}}


def theirs(data: bytes, config: dict[str, Any]) -> Tiles:
    """The pixels of transformers' processor, from the bytes of a file. Raises ValueError."""
    settings = {name: config[name] for name in ("size", "resample") if name in config}
    # Without scaling, which the encoder does, pixels stay whole numbers.
    made = PixtralImageProcessorPil(
        **settings, patch_size={"height": 16, "width": 16}, do_rescale=False, do_normalize=False
    )
    image = ImageOps.exif_transpose(Image.open(BytesIO(data)))
    pixels = np.moveaxis(made(image, return_tensors="np")["pixel_values"], 1, -1)
    assert (pixels == pixels.astype(np.uint8)).all()
    return pixels.astype(np.uint8)


def check_files(number: int, seed: int) -> None:
    num_refused = 0
    for at, file in enumerate(files(number, seed=seed)):
        config = (CONFIG, WIDE, FLAT)[at // 3 % 3]
        processor, image = Mistral3Processor(config, {}), decode(file.data, MAX_PIXELS)
        try:
            found = ours(processor.process(image))
        except InvalidRequestError:
            num_refused += 1
            with pytest.raises(ValueError, match=r"height=0|width=0|must be > 0"):
                theirs(file.data, config)
        else:
            assert np.array_equal(found, theirs(file.data, config)), file.name
    assert 0 < num_refused < number / 4


def test_pixels_equal_those_of_transformers_for_files_of_every_kind() -> None:
    check_files(69, seed=0)


@pytest.mark.soak
def test_pixels_of_500_files_equal_those_of_transformers() -> None:
    check_files(500, seed=1)


@pytest.mark.parametrize("resample", [0, 1, 2])
def test_the_filter_is_the_one_of_the_model(resample: int) -> None:
    config = CONFIG | {"resample": resample}
    image = noise(np.random.default_rng(0), (90, 40))
    found = ours(Mistral3Processor(config, {}).process(image))
    assert np.array_equal(found, theirs(saved(image, "PNG"), config))


def test_an_image_is_one_item_of_lines() -> None:
    made = Mistral3Processor(CONFIG, {}).process(Image.new("RGB", (40, 25)))
    line = 3 * "[IMG]"
    assert made.text == f"{line}[IMG_BREAK]{line}[IMG_END]"
    [item] = made.items
    assert (item.shape, item.num_tokens, item.num_between) == ((32, 48, 3), 7, 1)
    assert not item.is_whole


def test_the_largest_image_in_a_rectangle_has_the_most_tokens() -> None:
    processor = Mistral3Processor(CONFIG, {})
    assert processor.largest_size(None, None) == (96, 96)
    for width, height in ((50, 300), (300, 50), (20, 20), (400, 200)):
        most = processor.num_tokens(*processor.largest_size(width, height))
        sizes = [(x, y) for x in range(1, width + 1, 7) for y in range(1, height + 1, 7)]
        assert max(tokens(processor, *size) for size in sizes) <= most


def tokens(processor: Mistral3Processor, width: int, height: int) -> int:
    """The number of tokens; 0 for an image that is refused."""
    try:
        return processor.num_tokens(width, height)
    except InvalidRequestError:
        return 0


def test_an_image_that_would_have_no_pixels_is_refused() -> None:
    processor = Mistral3Processor(CONFIG, {})
    for size in SIZES[1:3]:
        with pytest.raises(InvalidRequestError, match="the image is too narrow"):
            processor.num_tokens(*size)
        with pytest.raises(InvalidRequestError, match="96 x 96 pixels"):
            processor.process(Image.new("RGB", size))


def test_an_image_of_mistral_small_costs_as_much_as_some_hundred_tokens() -> None:
    """17.3 TFLOP for the largest image, against 45.5 GFLOP per token."""
    text = {
        "hidden_size": 5120,
        "intermediate_size": 32768,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    vision = {"hidden_size": 1024, "intermediate_size": 4096, "patch_size": 14}
    config = {"model_type": "mistral3", "text_config": text, "vision_config": vision}
    config |= {"size": {"longest_edge": 1540}, "spatial_merge_size": 2}
    [item] = Mistral3Processor(config, {}).process(Image.new("RGB", (2000, 2000))).items
    assert (item.num_tokens, item.shape) == (55 * 56 - 1, (1540, 1540, 3))
    assert 350 < item.cost < 800


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "there is no 'siz'. Did you mean": ({}, {"siz": {"longest_edge": 64}}),
    "do_resize is false": ({"do_resize": False}, {}),
    "do_center_crop is true": ({"do_center_crop": True}, {}),
    "size must be": ({"size": {"longest_edge": 1 << 20}}, {}),
    "got {'width': 3}": ({}, {"size": {"width": 3}}),
    "must be positive integers": ({"spatial_merge_size": 0}, {}),
    "resample must be": ({"resample": 9}, {}),
    "image_break_token must be a text": ({"image_break_token": 3}, {}),
}


@pytest.mark.parametrize("why", REFUSED)
def test_settings_that_it_cannot_follow_are_refused(why: str) -> None:
    changes, kwargs = REFUSED[why]
    with pytest.raises(ConfigError, match=re.escape(why)):
        Mistral3Processor(CONFIG | changes, kwargs)


def test_kwargs_make_images_smaller() -> None:
    smaller = Mistral3Processor(CONFIG, {"size": {"longest_edge": 32}})
    assert smaller.num_tokens(500, 500) == 2 * 3 - 1


def test_it_does_not_fit_other_models() -> None:
    assert Mistral3Processor.reasons_against(CONFIG) == []
    assert "'gemma3'" in Mistral3Processor.reasons_against(CONFIG | {"model_type": "gemma3"})[0]
