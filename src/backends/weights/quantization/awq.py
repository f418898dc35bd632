"""AWQ, version "gemm": int4 with zero points, packed along the outputs.

Layout: https://github.com/casper-hansen/AutoAWQ/blob/main/awq/modules/linear/gemm.py.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from ....core.errors import ConfigError
from ..config.fields import Fields
from ..formats.bits import as_bytes, unpack_words
from ..formats.grouped_ints import grouped_ints
from ..packed import PackedWeights
from .method import FLOATS, Method, Parts, read_group_size, require

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in a word, in units of 4 bits from the lowest, of each of its 8 outputs."""


def awq(fields: Fields) -> Method:
    """Raises ConfigError if the settings are not supported."""
    require(fields, "bits", (4,), default=4)
    require(fields, "version", ("gemm", "GEMM"), default="gemm")
    return Method(
        name="awq",
        markers=(".qweight",),
        endings=(".qweight", ".qzeros", ".scales"),
        read=partial(_read, read_group_size(fields)),
    )


def _read(group_size: int | None, parts: Parts) -> PackedWeights:
    words = parts.need(".qweight", torch.int32)
    scales = parts.need(".scales", *FLOATS)
    zeros = parts.need(".qzeros", torch.int32)
    num_inputs, num_outputs = words.shape[0], words.shape[1] * 8
    if scales.shape[1] != num_outputs or zeros.shape[1] != words.shape[1]:
        raise ConfigError("its parts have different numbers of outputs")
    return grouped_ints(
        (num_outputs, num_inputs),
        bits=4,
        group_size=group_size,
        integers=_pack(words),
        scales=scales.t().contiguous(),
        zeros=_unpack(zeros),
    )


def _pack(words: torch.Tensor) -> torch.Tensor:
    """Return the integers of words [in, out / 8] as those of GroupedInts, [out, ceil(in / 2)]."""
    rows = as_bytes(F.pad(words, (0, 0, 0, len(words) % 2)))
    even, odd = rows[::2], rows[1::2]
    # The lower and the upper half of byte k of a word are its places 2k and 2k + 1.
    halves = [
        half.t().contiguous().view(-1, 4, len(even))
        for half in (even & 15 | odd << 4, even >> 4 | odd & 0xF0)
    ]
    packed = torch.empty(words.shape[1], 8, len(even), dtype=torch.uint8)
    for output, place in enumerate(_PLACES):
        packed[:, output] = halves[place % 2][:, place // 2]
    return packed.flatten(0, 1)


def _unpack(words: torch.Tensor) -> torch.Tensor:
    """Return the integers of words [n, out / 8], as uint8 [out, n]."""
    in_places = unpack_words(words, 4, words.shape[1] * 8).reshape(len(words), -1, 8)
    in_order = in_places[..., _PLACES].flatten(1)
    return in_order.t().contiguous()
