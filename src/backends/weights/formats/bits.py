"""Integers of 2, 3, 4 and 8 bits in the words of a file, and two integers of 4 bits per byte."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def as_bytes(words: torch.Tensor) -> torch.Tensor:
    """Return the bytes of int32 words [rows, n], lowest first: uint8 [rows, 4 * n]."""
    # A contiguous tensor with a dimension of size 1 may have strides that `view(dtype)` refuses.
    stream = words.contiguous().as_strided((words.numel(),), (1,))
    return stream.view(torch.uint8).view(words.shape[0], 4 * words.shape[1])


def unpack_words(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Return the first `count` integers of each row of int32 words, as uint8 [rows, count].

    A row is a stream of bits that starts at the lowest bit of its first word. An integer of 3 bits
    can begin in one word and end in the next.
    """
    rows = as_bytes(words)
    # Eight integers of n bits fill n bytes.
    octets = F.pad(rows, (0, -rows.shape[1] % bits)).view(len(rows), -1, bits)
    integers = torch.empty(*octets.shape[:2], 8, dtype=torch.uint8)
    for place in range(8):
        byte, shift = divmod(place * bits, 8)
        value = octets[..., byte] >> shift
        if shift + bits > 8:
            value |= octets[..., byte + 1] << 8 - shift
        integers[..., place] = value & 2**bits - 1
    return integers.flatten(1)[:, :count]


def pack_nibbles(integers: torch.Tensor) -> torch.Tensor:
    """Pack integers below 16, uint8 [rows, in], in pairs: uint8 [rows, ceil(in / 2)].

    The even input is in the lower half of the byte.
    """
    low, high = integers[:, ::2], integers[:, 1::2]
    packed = low.clone()
    packed[:, : high.shape[1]] |= high << 4
    return packed


def unpack_nibbles(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Undo pack_nibbles for rows of `count` integers."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)[:, :count]
