"""The processor of Qwen2.5-VL makes what transformers' processor makes."""

from __future__ import annotations

import random
import re
from copy import deepcopy
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)

from tokenmill.backends.media.decoding import decode
from tokenmill.backends.media.qwen2_vl.processor import Qwen2VLProcessor
from tokenmill.backends.media.qwen2_vl.sizes import most_tokens, resized
from tokenmill.core.errors import ConfigError, InvalidRequestError

from .image_files import SIZES, files, noise, saved
from .oracle import Tiles, ours

MAX_PIXELS = 1 << 20
PATCH = 8
CONFIG: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "vision_config": {"patch_size": PATCH},
    "patch_size": PATCH,
    "size": {"shortest_edge": 32 * 32, "longest_edge": 160 * 160},
}


def theirs(data: bytes, config: dict[str, Any]) -> Tiles:
    """The patches of transformers' processor, from the bytes of a file."""
    names = "size", "min_pixels", "max_pixels", "patch_size", "resample"
    settings = deepcopy({name: config[name] for name in names if name in config})
    # The encoder scales pixels. Without scaling they stay integers.
    made = Qwen2VLImageProcessorPil(**settings, do_rescale=False, do_normalize=False)
    image = ImageOps.exif_transpose(Image.open(BytesIO(data)))
    patches: Tiles = made(image, return_tensors="np")["pixel_values"]
    assert (patches == patches.astype(np.uint8)).all()
    return patches.astype(np.uint8)


def patches_of(image: Tiles) -> Tiles:
    """The patches of an image, in the order of the squares that become tokens. Each patch has two
    equal frames."""
    _, height, width, _ = image.shape
    side = 2 * PATCH
    squares = image.reshape(height // side, 2, PATCH, width // side, 2, PATCH, 3)
    patches = squares.transpose(0, 3, 1, 4, 6, 2, 5)
    return np.stack([patches, patches], axis=5).reshape(-1, 3 * 2 * PATCH**2)


def check_files(number: int, seed: int) -> None:
    processor, num_refused = Qwen2VLProcessor(CONFIG, {}), 0
    for file in files(number, seed=seed):
        image = decode(file.data, MAX_PIXELS)
        if max(image.size) > 200 * min(image.size):
            num_refused += 1
            with pytest.raises(InvalidRequestError, match="too long and narrow"):
                processor.process(image)
            with pytest.raises(ValueError, match="absolute aspect ratio"):
                theirs(file.data, CONFIG)
            continue
        found = patches_of(ours(processor.process(image)))
        assert np.array_equal(found, theirs(file.data, CONFIG)), file.name
    assert 0 < num_refused < number / 2


def test_pixels_equal_those_of_transformers_for_files_of_every_kind() -> None:
    check_files(69, seed=0)


@pytest.mark.soak
def test_pixels_of_500_files_equal_those_of_transformers() -> None:
    check_files(500, seed=1)


@pytest.mark.parametrize(
    "changes", [{"resample": 2}, {"min_pixels": 9000}, {"max_pixels": 4000}], ids=str
)
def test_settings_are_those_of_the_model(changes: dict[str, Any]) -> None:
    image = noise(np.random.default_rng(0), (90, 40))
    found = patches_of(ours(Qwen2VLProcessor(CONFIG | changes, {}).process(image)))
    assert np.array_equal(found, theirs(saved(image, "PNG"), CONFIG | changes))


def test_a_flag_changes_the_bounds_of_pixels() -> None:
    small = Qwen2VLProcessor(CONFIG, {"max_pixels": 4096, "min_pixels": 1024})
    assert small.num_tokens(1000, 1000) == 16
    assert small.num_tokens(3, 3) == 4


def test_sizes_are_those_of_transformers() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        low = rng.randint(1, 20_000)
        high = rng.randint(max(low, 28 * 28), 1_000_000)
        width, height = rng.randint(1, 5000), rng.randint(1, 5000)
        if max(width, height) > 200 * min(width, height):
            continue
        expected = smart_resize(height, width, 28, low, high)[::-1]
        found = resized(width, height, unit=28, min_pixels=low, max_pixels=high)
        assert found == expected
        largest = most_tokens(unit=28, min_pixels=low, max_pixels=high)
        assert found[0] * found[1] <= largest * 28 * 28


def test_no_image_within_a_rectangle_has_more_tokens_than_its_largest_one() -> None:
    rng = random.Random(0)
    for _ in range(500):
        low = rng.randint(1, 20_000)
        high = rng.randint(max(low, 28 * 28), 400_000)
        width, height = rng.randint(1, 1500), rng.randint(1, 1500)
        most = most_tokens(unit=28, min_pixels=low, max_pixels=high, width=width, height=height)
        assert most <= most_tokens(unit=28, min_pixels=low, max_pixels=high)
        for _ in range(20):
            size = rng.randint(1, width), rng.randint(1, height)
            if max(size) <= 200 * min(size):
                found = resized(*size, unit=28, min_pixels=low, max_pixels=high)
                assert found[0] * found[1] <= most * 28 * 28


def test_memory_for_a_square_is_enough_for_images_that_are_shrunk_less() -> None:
    """1000 x 1000 pixels become 35 x 35 tokens, and 1000 x 990 become 36 x 35."""
    processor = Qwen2VLProcessor({"model_type": "qwen2_5_vl"}, {})
    assert processor.num_tokens(1000, 1000) < processor.num_tokens(1000, 990)
    assert processor.most_tokens(1000, 1000) >= processor.num_tokens(1000, 990)
    # No image has this shape, but memory can be reserved for all that are smaller.
    assert processor.most_tokens(28 * 201, 28) == 201


def test_an_image_is_one_item_with_the_rows_and_columns_of_its_tokens() -> None:
    processor = Qwen2VLProcessor(CONFIG, {})
    for size in SIZES:
        if max(size) > 200 * min(size):
            continue
        made = processor.process(Image.new("RGB", size))
        [item] = made.items
        height, width, _ = item.shape
        assert item.grid == (1, height // 16, width // 16)
        assert item.num_tokens == processor.num_tokens(*size) == item.grid[1] * item.grid[2]
        assert made.text == item.num_tokens * "<|image_pad|>"
        assert not item.is_whole


def test_a_photo_costs_qwen_2_5_vl_3b_as_much_as_some_thousand_tokens() -> None:
    """3.0 TFLOP in 32 layers, of which 4 see all patches, and 5.6 GFLOP per token."""
    text = {
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
    }
    vision = {"hidden_size": 1280, "intermediate_size": 3420}
    config = {"model_type": "qwen2_5_vl", "vision_config": vision}
    for whole in (config | text, config | {"text_config": text}):  # files have either
        [item] = Qwen2VLProcessor(whole, {}).process(Image.new("RGB", (1024, 768))).items
        assert (item.num_tokens, item.shape) == (27 * 37, (756, 1036, 3))
        assert 900 < item.cost < 1200


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "there is no 'max_pixel'. Did you mean": ({}, {"max_pixel": 9}),
    "do_resize is false": ({"do_resize": False}, {}),
    "patch_size and merge_size must be the encoder's": ({"patch_size": 4}, {}),
    "max_pixels must be from 1 to 33554432": ({}, {"max_pixels": 1 << 40}),
    "max_pixels must be at least 256": ({}, {"max_pixels": 255, "min_pixels": 1}),
    "min_pixels must be from 1 to 25600": ({"min_pixels": 30_000}, {}),
    "resample must be": ({"resample": 9}, {}),
    "image_token must be a text": ({"image_token": 3}, {}),
    "fullatt_block_indexes must be a list of integers": (
        {"vision_config": {"patch_size": PATCH, "fullatt_block_indexes": 7}},
        {},
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_settings_that_it_cannot_follow_are_refused(why: str) -> None:
    changes, kwargs = REFUSED[why]
    with pytest.raises(ConfigError, match=re.escape(why)):
        Qwen2VLProcessor(CONFIG | changes, kwargs)


def test_it_does_not_fit_other_models() -> None:
    assert Qwen2VLProcessor.reasons_against(CONFIG) == []
    assert "'smolvlm'" in Qwen2VLProcessor.reasons_against(CONFIG | {"model_type": "smolvlm"})[0]
