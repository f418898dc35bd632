"""Image files of every kind that is supported: formats, modes, turns, transparency and sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import count, islice
from typing import Any

import numpy as np
from PIL import Image

SIZES = ((1, 1), (1, 4000), (4000, 1), (2, 3), (64, 64), (65, 40), (257, 120), (90, 333))
"""Width and height."""
SMALL = {
    "size": {"longest_edge": 256},
    "max_image_size": {"longest_edge": 64},
}
CONFIG: dict[str, Any] = {
    "model_type": "smolvlm",
    "scale_factor": 2,
    "image_seq_len": 4,
    "vision_config": {"patch_size": 16, "image_size": 64},
    **SMALL,
}
"""Fields of a model's files. An image has at most 16 tiles of 64 x 64 pixels, each of 4 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    name: str
    data: bytes


def files(number: int, seed: int = 0) -> Iterator[File]:
    """This many files, with every recipe, size and turn in other combinations."""
    rng = np.random.default_rng(seed)
    for at in islice(count(), number):
        name, make = RECIPES[at % len(RECIPES)]
        size = SIZES[at % len(SIZES)] if at % 3 else tuple(map(int, rng.integers(1, 400, 2)))
        turn = at % 9
        yield File(
            name=f"{at}: {name}, {size[0]}x{size[1]}, turn {turn}", data=make(rng, size, turn)
        )


def saved(image: Image.Image, format: str, turn: int = 0, **options: Any) -> bytes:
    """The bytes of a file. `turn`: the orientation in its EXIF data; 0: it has none."""
    file = BytesIO()
    if turn:
        exif = Image.Exif()
        exif[0x0112] = turn
        options["exif"] = exif
    image.save(file, format, **options)
    return file.getvalue()


def noise(rng: np.random.Generator, size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    """Random pixels, also random alpha."""
    width, height = size
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 1 << 16, (height, width), dtype=np.uint16))
    if mode == "1":
        return Image.fromarray(rng.integers(0, 256, (height, width), dtype=np.uint8)).convert("1")
    depth = len(Image.new(mode, (1, 1)).getbands())
    pixels = rng.integers(0, 256, (height, width, depth), dtype=np.uint8)
    return Image.frombytes(mode, size, pixels.tobytes())


def _plain(format: str, mode: str, **options: Any) -> Callable[..., bytes]:
    def make(rng: np.random.Generator, size: tuple[int, int], turn: int) -> bytes:
        image = noise(rng, size, mode)
        if mode == "P":
            image.putpalette(rng.integers(0, 256, 768, dtype=np.uint8).tobytes())
        return saved(image, format, turn if format != "GIF" else 0, **options)

    return make


def _animated(format: str) -> Callable[..., bytes]:
    def make(rng: np.random.Generator, size: tuple[int, int], turn: int) -> bytes:
        first, *others = (noise(rng, size) for _ in range(3))
        return saved(first, format, 0, save_all=True, append_images=others, duration=10)

    return make


RECIPES: tuple[tuple[str, Callable[..., bytes]], ...] = (
    ("PNG of 1 bit", _plain("PNG", "1")),
    ("PNG in grey", _plain("PNG", "L")),
    ("PNG in grey, one value is transparent", _plain("PNG", "L", transparency=7)),
    ("PNG in grey with alpha", _plain("PNG", "LA")),
    ("PNG with a palette", _plain("PNG", "P")),
    ("PNG with a palette, one color is transparent", _plain("PNG", "P", transparency=3)),
    ("PNG with a palette with alpha", _plain("PNG", "P", transparency=bytes(range(256)))),
    ("PNG in RGB", _plain("PNG", "RGB")),
    ("PNG in RGB, one color is transparent", _plain("PNG", "RGB", transparency=(1, 2, 3))),
    ("PNG in RGBA", _plain("PNG", "RGBA")),
    ("PNG of 16 bits", _plain("PNG", "I;16")),
    ("JPEG in grey", _plain("JPEG", "L")),
    ("JPEG in RGB", _plain("JPEG", "RGB", quality=80)),
    ("JPEG in RGB, progressive", _plain("JPEG", "RGB", progressive=True)),
    ("JPEG in CMYK", _plain("JPEG", "CMYK")),
    ("WebP in RGB", _plain("WEBP", "RGB")),
    ("WebP in RGBA", _plain("WEBP", "RGBA", lossless=True)),
    ("GIF", _plain("GIF", "P")),
    ("GIF in grey", _plain("GIF", "L")),
    ("GIF with a transparent color", _plain("GIF", "P", transparency=5)),
    ("GIF with several frames", _animated("GIF")),
    ("PNG with several frames", _animated("PNG")),
    ("WebP with several frames", _animated("WEBP")),
)
