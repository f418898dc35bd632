"""The encoder cache of an executor: what is encoded together, and what is kept of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tokenmill.backends.vision.encoded_items import EncodedItems
from tokenmill.core.plan import MediaWork
from tokenmill.core.requests.media import MediaItem


class Tower:
    """Makes a row of the first numbers of an image, and notes how many images it gets."""

    device = torch.device("cpu")

    def __init__(self, images_at_once: int) -> None:
        self.images_at_once = images_at_once
        self.shapes: list[tuple[int, ...]] = []

    def encode(self, pixels_nyxc: torch.Tensor) -> torch.Tensor:
        self.shapes.append(tuple(pixels_nyxc.shape))
        return pixels_nyxc.flatten(1)[:, None, :4].float()


def item(number: int, side: int) -> MediaItem:
    return MediaItem(
        digest=bytes([number]),
        start=0,
        num_tokens=1,
        cost=1,
        shape=(side, side, 3),
        pixels=bytes([number]) * (3 * side**2),
    )


@pytest.mark.parametrize(
    ("most", "shapes"),
    [
        (1, [(1, 2, 2, 3)] * 3 + [(1, 4, 4, 3)]),
        (2, [(2, 2, 2, 3), (1, 2, 2, 3), (1, 4, 4, 3)]),
        (8, [(3, 2, 2, 3), (1, 4, 4, 3)]),
    ],
)
def test_items_of_one_shape_are_encoded_together(most: int, shapes: list[tuple[int, ...]]) -> None:
    tower: Any = Tower(most)
    encoded = EncodedItems(tower)
    items = [item(1, 2), item(2, 2), item(3, 2), item(4, 4)]
    encoded.take(items)
    encoded.encode(MediaWork(encode=tuple(one.digest for one in items)))
    assert tower.shapes == shapes
    for number, one in enumerate(items, 1):
        place = SimpleNamespace(digest=one.digest, start=0, num_tokens=1)
        start: Any = SimpleNamespace(media=(place,))
        grant: Any = SimpleNamespace(start=0, num_tokens=1)
        [(first, rows)] = encoded.rows_of(start, grant)
        assert first == 0 and rows.tolist() == [[number] * 4]
        assert rows.untyped_storage().nbytes() == 4 * 4, "it keeps the rows of others"
