"""The rotary positions of prompts with images are those of transformers."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import transformers
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

from tokenmill.backends.state.rotary_positions import rotary_positions
from tokenmill.core.requests.media import MediaPlace

MERGE = 2


@pytest.fixture(scope="module")
def model() -> Qwen2_5_VLModel:
    with torch.device("meta"):
        return Qwen2_5_VLModel(
            transformers.Qwen2_5_VLConfig(
                text_config={"num_hidden_layers": 1}, vision_config={"depth": 1}
            )
        )


def layout(rng: random.Random) -> tuple[list[MediaPlace], int]:
    """Images with text before, between and after them, and the number of all tokens."""
    places, end = [], 0
    for _ in range(rng.randint(0, 4)):
        start = end + rng.randint(1, 6)
        rows, columns = rng.randint(1, 5), rng.randint(1, 9)
        places.append(
            MediaPlace(digest=b"", start=start, num_tokens=rows * columns, grid=(1, rows, columns))
        )
        end = start + rows * columns
    return places, end + rng.randint(1, 9)


def theirs(model: Qwen2_5_VLModel, places: list[MediaPlace], num_tokens: int) -> torch.Tensor:
    types = torch.zeros(1, num_tokens, dtype=torch.int32)
    for place in places:
        types[0, place.start : place.start + place.num_tokens] = 1
    grids = [(1, place.grid[1] * MERGE, place.grid[2] * MERGE) for place in places]
    found, _ = model.get_rope_index(
        torch.zeros(1, num_tokens, dtype=torch.int64), types, torch.tensor(grids).view(-1, 3)
    )
    positions: torch.Tensor = found[:, 0]
    return positions


def test_whole_prompts_have_the_positions_of_transformers(model: Qwen2_5_VLModel) -> None:
    rng = random.Random(0)
    for _ in range(200):
        places, num_tokens = layout(rng)
        found = rotary_positions(places, 0, num_tokens)
        assert found.tolist() == theirs(model, places, num_tokens).tolist()


def test_any_part_of_a_sequence_has_its_part_of_the_positions() -> None:
    rng = random.Random(1)
    for _ in range(200):
        places, num_tokens = layout(rng)
        num_tokens += 20  # generated ones
        whole = rotary_positions(places, 0, num_tokens)
        start = rng.randrange(num_tokens)
        count = rng.randint(1, num_tokens - start)
        part = rotary_positions(places, start, count)
        assert np.array_equal(part, whole[:, start : start + count])


def test_items_without_a_grid_are_like_text() -> None:
    places = [MediaPlace(digest=b"", start=2, num_tokens=4)]
    assert rotary_positions(places, 1, 8).tolist() == [list(range(1, 9))] * 3
