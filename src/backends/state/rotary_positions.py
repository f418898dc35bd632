"""The rotary positions of tokens in models whose images have rows and columns (Qwen2.5-VL).

Each token has three rotary positions: frame, row and column. They are equal for a token of text.
The first token of an image has the next position after the text before it. The first token of text
after an image has that position plus the larger of the image's numbers of rows and columns. So the
rotary positions after an image are usually smaller than the place in the sequence. Only the place
decides where the K and V of a token are stored, and which tokens it sees.

Shape suffixes: t tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...core.requests.media import MediaPlace


def rotary_positions(
    media: Sequence[MediaPlace], start: int, num_tokens: int
) -> npt.NDArray[np.int64]:
    """Return the rotary positions, int64 [3, t], of the `num_tokens` tokens from place `start` on.

    `media`: the items of the prompt, in order. The tokens of items without a grid count as text.
    """
    found_3t = np.tile(np.arange(start, start + num_tokens, dtype=np.int64), (3, 1))
    shift = 0
    for place in media:
        first, last = (max(at - start, 0) for at in (place.start, place.start + place.num_tokens))
        if not place.grid or first >= num_tokens:
            continue
        if first < last:
            inside_3t = np.indices(place.grid).reshape(3, -1) + place.start + shift
            passed = max(start - place.start, 0)
            found_3t[:, first:last] = inside_3t[:, passed : passed + num_tokens - first]
        skipped = max(place.grid[1:]) - place.num_tokens
        found_3t[:, last:] += skipped
        shift += skipped
    return found_3t
