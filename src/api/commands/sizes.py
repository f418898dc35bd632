"""Sizes in bytes as text for people."""

from __future__ import annotations


def size_text(num_bytes: int) -> str:
    """Return a size in the largest unit that fits, for example "1.5 GiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.1f} {unit}"
    return f"{num_bytes} bytes"
