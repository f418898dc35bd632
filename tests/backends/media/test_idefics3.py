"""The processor of Idefics3 and SmolVLM makes what transformers' processors make."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tokenmill.backends.media.decoding import decode
from tokenmill.backends.media.idefics3.cost import cost_of_tile
from tokenmill.backends.media.idefics3.processor import Idefics3Processor
from tokenmill.core.errors import ConfigError

from .image_files import CONFIG, SIZES, files, noise, saved
from .oracle import CLASSES, ours, theirs

MAX_PIXELS = 1 << 20


def test_pixels_equal_those_of_transformers_for_files_of_every_kind() -> None:
    processor = Idefics3Processor(CONFIG, {})
    for file in files(69):
        found = ours(processor.process(decode(file.data, MAX_PIXELS)))
        assert np.array_equal(found, theirs(file.data, CONFIG)), file.name


@pytest.mark.soak
def test_pixels_of_500_files_equal_those_of_transformers() -> None:
    configs = [CONFIG | {"model_type": name} for name in CLASSES]
    for number, file in enumerate(files(500, seed=1)):
        config = configs[number % 2]
        found = ours(Idefics3Processor(config, {}).process(decode(file.data, MAX_PIXELS)))
        assert np.array_equal(found, theirs(file.data, config)), file.name


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "idefics3"},
        {"do_image_splitting": False},
        {"resample": 3},
        {"size": {"longest_edge": 64}},
        {"size": {"longest_edge": 100}},
        {"size": {"longest_edge": 1}},
    ],
    ids=str,
)
def test_settings_have_the_same_effect_as_in_transformers(changes: dict[str, Any]) -> None:
    config = CONFIG | changes
    processor = Idefics3Processor(config, {})
    for size in ((1, 1), (1, 400), (400, 1), (65, 40)):
        image = noise(np.random.default_rng(0), size)
        found = ours(processor.process(image))
        assert np.array_equal(found, theirs(saved(image, "PNG"), config)), size


def test_kwargs_count_more_than_the_models_files() -> None:
    image = noise(np.random.default_rng(0), (300, 200))
    for kwargs in ({"size": {"longest_edge": 100}}, {"do_image_splitting": False}):
        found = Idefics3Processor(CONFIG, kwargs).process(image)
        assert found == Idefics3Processor(CONFIG | kwargs, {}).process(image)
        assert found != Idefics3Processor(CONFIG, {}).process(image)


def test_fields_of_the_nested_image_processor_count() -> None:
    """transformers 5 writes them into processor_config.json."""
    image = noise(np.random.default_rng(0), (300, 200))
    nested = CONFIG | {"image_processor": {"size": {"longest_edge": 64}}}
    assert len(Idefics3Processor(nested, {}).process(image).items) == 1


def test_the_number_of_tokens_is_known_without_pixels() -> None:
    processor = Idefics3Processor(CONFIG, {})
    for size in (*SIZES, (12345, 17), (1000, 999)):
        items = processor.process(Image.new("RGB", size)).items
        assert processor.num_tokens(*size) == sum(one.num_tokens for one in items), size


def test_an_image_of_1x1_pixels_becomes_17_items() -> None:
    """It ended a peer's engine: CVE-2026-22773."""
    image = Idefics3Processor(CONFIG, {}).process(Image.new("RGB", (1, 1)))
    assert [one.num_tokens for one in image.items] == [4] * 17


REFUSED: dict[str, dict[str, Any]] = {
    "there is no 'sise'. Did you mean 'size'": {"sise": {}},
    "size must be": {"size": {"longest_edge": 0}},
    "size must be {": {"size": 512},
    "max_image_size: tiles of 128 pixels become 16 tokens": {
        "max_image_size": {"longest_edge": 128}
    },
    "a tile needs at least 32": {"max_image_size": {"longest_edge": 16}},
    "do_image_splitting must be": {"do_image_splitting": "no"},
}


@pytest.mark.parametrize("why", REFUSED)
def test_wrong_kwargs_are_refused(why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        Idefics3Processor(CONFIG, REFUSED[why])


def test_it_does_not_fit_other_models_and_settings() -> None:
    reasons_against = Idefics3Processor.reasons_against
    assert reasons_against(CONFIG) == []
    assert "'gemma3'" in reasons_against(CONFIG | {"model_type": "gemma3"})[0]
    assert "do_resize" in reasons_against(CONFIG | {"do_resize": False})[0]
    assert reasons_against({}) != []


def test_a_tile_of_smolvlm_costs_as_much_as_a_thousand_tokens() -> None:
    """215 GFLOP against 0.21 per token."""
    text = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    }
    vision = {"hidden_size": 768, "patch_size": 16}
    assert cost_of_tile({"vision_config": vision, "text_config": text}, 512) == 1011
    assert cost_of_tile({"vision_config": vision, "text_config": text}, 256) < 1011 / 4
    assert cost_of_tile({"vision_config": vision}, 16) == 1
