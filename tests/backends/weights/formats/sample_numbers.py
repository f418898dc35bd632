"""Numbers that are the same on every machine, for blocks that were made elsewhere."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

ROWS, COLUMNS = 4, 256


def make_numbers(rows: int = ROWS, columns: int = COLUMNS) -> NDArray[np.float32]:
    """Float32 [rows, columns], nearly normal, and of another size in each row."""
    draw = random.Random(17)
    values = [sum(draw.getrandbits(12) for _ in range(6)) - 6 * 2047 for _ in range(rows * columns)]
    sizes = np.array([2.0 ** -(14 + row % 5) for row in range(rows)], dtype=np.float32)
    return np.array(values, dtype=np.float32).reshape(rows, columns) * sizes[:, None]
