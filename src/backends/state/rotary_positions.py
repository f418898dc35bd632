"""The positions by which a model turns tokens, if images have rows and columns (Qwen2.5-VL).

Each token has three: its frame, its row and its column. Tokens of text have one number for all
three. An image begins where the text before it ends; then text goes on after the larger one of the
image's numbers of rows and columns. So the number of a token behind images is smaller than its
place in the sequence, which alone says where its K and V are, and what it sees.

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
    """int64 [3, t] of the tokens from place `start` in a sequence on. `media`: the items of its
    prompt, in order. Items without a grid are like text."""
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
