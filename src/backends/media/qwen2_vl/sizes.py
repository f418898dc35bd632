"""The size to which an image is resized, as transformers' Qwen2VLImageProcessor computes it."""

from __future__ import annotations

import math

from ....core.errors import InvalidRequestError

MAX_RATIO = 200
"""Maximum ratio of the longer side of an image to the shorter side."""


def resized(
    width: int, height: int, *, unit: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """Width and height, both multiples of `unit`, in pixels, close to the image's aspect ratio.

    Raises InvalidRequestError for an image that is too long and narrow.
    """
    if max(width, height) > MAX_RATIO * min(width, height):
        raise InvalidRequestError(
            f"the image is too long and narrow: one side is more than {MAX_RATIO} times the other"
        )
    # The order of operations is transformers', because rounding decides.
    new_height, new_width = round(height / unit) * unit, round(width / unit) * unit
    if new_height * new_width > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        new_height = max(unit, math.floor(height / shrink / unit) * unit)
        new_width = max(unit, math.floor(width / shrink / unit) * unit)
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / unit) * unit
        new_width = math.ceil(width * grow / unit) * unit
    return new_width, new_height


def most_tokens(
    *,
    unit: int,
    min_pixels: int,
    max_pixels: int,
    width: int | None = None,
    height: int | None = None,
) -> int:
    """An upper bound of the number of tokens, each of `unit` x `unit` pixels, of an image that fits
    into a rectangle. None: into any."""
    ratio = MAX_RATIO
    if width is not None and height is not None:
        ratio = min(MAX_RATIO, max(width, height))
    # Both sides of an enlarged image are rounded up. Before that, the longest one with a number of
    # rows has just more than one row less.
    side = math.sqrt(min_pixels) / unit
    grown = max(
        rows * math.ceil(side**2 / max(rows - 1, side / math.sqrt(ratio)))
        for rows in range(1, math.ceil(side) + 1)
    )
    if width is not None and height is not None:
        fitting = math.ceil(width / unit) * math.ceil(height / unit)
        if fitting * unit**2 <= max_pixels:
            return max(fitting, grown)  # none is shrunk
    shrunk = max_pixels // unit**2
    narrow = math.isqrt(ratio * max_pixels) // unit + 1  # one row, which is not shrunk further
    return max(shrunk, narrow, grown)
