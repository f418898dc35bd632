"""Strings as GGUF files hold them, for both readers of their headers."""

from __future__ import annotations

import struct
from mmap import mmap


def read_strings(
    data: bytes | mmap, at: int, count: int, byte_order: str, part: str
) -> tuple[list[str], int]:
    """`count` strings from `at` on, and where they end; `byte_order` is struct's "<" or ">".

    No call per string: a vocabulary and its merges are a hundred thousand. Raises ValueError if the
    data end before the strings do, in the `part` of the file that it names, or for one that is not
    UTF-8.
    """
    end = len(data)
    read_length = struct.Struct(f"{byte_order}Q").unpack_from
    found = []
    for _ in range(count):
        start = at + 8
        if start <= end:
            at = start + read_length(data, at)[0]
        if max(start, at) > end:
            raise ValueError(f"it ends inside its {part}")
        found.append(data[start:at].decode("utf-8"))
    return found, at
