"""The sizes to which Idefics3 and SmolVLM resize an image, as transformers computes them.

All sizes are (width, height) in pixels.
"""

from __future__ import annotations

import math

Size = tuple[int, int]

MAX_EDGE = 4096
"""No image is larger, whatever is configured."""


def whole_size(size: Size, longest_edge: int) -> Size:
    """The size of the whole image: its longer side becomes `longest_edge`, longer or shorter.
    The other side is a multiple of two."""
    return _at_most(_with_longest(size, longest_edge), MAX_EDGE)


def tiled_size(size: Size, tile: int) -> Size:
    """The size of the image before it is cut into tiles: both sides are multiples of `tile`."""
    width, height = size
    ratio = width / height
    if width >= height:
        width = _multiple(width, tile)
        height = _multiple(int(width / ratio), tile)
    else:
        height = _multiple(height, tile)
        width = _multiple(int(height * ratio), tile)
    return width, height


def _with_longest(size: Size, longest_edge: int) -> Size:
    width, height = size
    ratio = width / height
    if width >= height:
        width, height = longest_edge, _even(int(longest_edge / ratio))
    else:
        width, height = _even(int(longest_edge * ratio)), longest_edge
    return max(width, 1), max(height, 1)


def _at_most(size: Size, edge: int) -> Size:
    width, height = size
    ratio = width / height
    if width >= height and width > edge:
        width, height = edge, int(edge / ratio)
    elif height > width and height > edge:
        width, height = int(edge * ratio), edge
    return max(width, 1), max(height, 1)


def _multiple(length: int, tile: int) -> int:
    return math.ceil(length / tile) * tile


def _even(length: int) -> int:
    return length + length % 2
