"""A prompt with images, between the one who reads a body and `check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import InvalidRequestError
from .media import MediaItem


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPrompt:
    """Token ids with a placeholder in each place of an item, and the items."""

    token_ids: Sequence[int]
    items: tuple[MediaItem, ...]
    """In order of their places, with digests that cover the salt."""


EnginePrompt = str | Sequence[int] | MediaPrompt
"""A text, token ids, or token ids with images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadImage:
    """A decoded and processed image: the tokens and items that replace its placeholder."""

    digest: bytes
    """SHA-256 over the file's bytes, the processor with its settings, and the salt."""
    token_ids: tuple[int, ...]
    """A placeholder in each place of its items, with the tokens around them."""
    items: tuple[MediaItem, ...]
    """In order of their places. `start` counts from the image's first token."""

    @property
    def num_bytes(self) -> int:
        return sum(len(item.pixels) for item in self.items)


def place_images(
    token_ids: Sequence[int], images: Sequence[ReadImage], shown_token_id: int
) -> MediaPrompt:
    """Replace each token in a chat that shows an image by one image, in order.

    Raises InvalidRequestError if there are more or fewer such tokens than images.
    """
    places = [at for at, token_id in enumerate(token_ids) if token_id == shown_token_id]
    if len(places) != len(images):
        raise InvalidRequestError(
            f"the prompt shows {len(places)} of {len(images)} images"
            if len(places) < len(images)
            else f"the prompt has places for {len(places)} images, got {len(images)}"
        )
    placed: list[int] = []
    items: list[MediaItem] = []
    begin = 0
    for place, image in zip(places, images, strict=True):
        placed += token_ids[begin:place]
        items += [replace(item, start=len(placed) + item.start) for item in image.items]
        placed += image.token_ids
        begin = place + 1
    placed += token_ids[begin:]
    return MediaPrompt(token_ids=placed, items=tuple(items))
