"""Decodes the bytes of an image file, in the process that may die of them.

Nothing of Pillow's own messages is passed on: they may hold addresses and paths.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import BytesIO
from typing import NoReturn

from PIL import GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, WebPImagePlugin
from PIL.ImageFile import ImageFile

from ...core.errors import InvalidRequestError

SUPPORTED = "PNG, JPEG, WebP or GIF"
FORMATS: dict[bytes, Callable[[BytesIO], ImageFile]] = {
    b"\x89PNG\r\n\x1a\n": PngImagePlugin.PngImageFile,
    b"\xff\xd8\xff": JpegImagePlugin.JpegImageFile,
    b"GIF87a": GifImagePlugin.GifImageFile,
    b"GIF89a": GifImagePlugin.GifImageFile,
}
"""First bytes of a file, and the class that opens it. Not Image.open: its readers of JPEG files go
on to read other formats that are hidden in them."""
OTHER_FORMATS = {
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"\0\0\x01\0": "ICO",
    b"\0\0\0\x0cjP": "JPEG 2000",
    b"\xffO\xffQ": "JPEG 2000",
    b"8BPS": "PSD",
    b"%PDF": "PDF",
    b"<svg": "SVG",
    b"<?xml": "SVG",
}
"""First bytes of files of other formats, for a better message."""
ORIENTATION = 0x0112
"""The number of the field in EXIF data."""
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
DAMAGED = "the image is damaged"


def limit_pixels(max_pixels: int) -> None:
    """Let Pillow refuse larger images, too: a WebP file allocates its canvas when it is opened."""
    Image.MAX_IMAGE_PIXELS = max_pixels
    warnings.simplefilter("ignore")  # `decode` checks the size itself


def decode(data: bytes, max_pixels: int) -> Image.Image:
    """The image in a file, in RGB: its first frame, turned as its EXIF data says.

    Raises InvalidRequestError for bytes that are no image of a supported format, for damaged ones,
    and for more than `max_pixels`, which is checked before any pixel is decoded.
    """
    opens = _find_format(data)
    try:
        image = opens(BytesIO(data))
    except Image.DecompressionBombError:
        _refuse_pixels(max_pixels)
    except MemoryError:
        raise
    except Exception as error:
        raise InvalidRequestError(DAMAGED) from error
    if image.width * image.height > max_pixels:
        _refuse_pixels(max_pixels)
    try:
        image.load()
        return _turned(_in_rgb(image), _orientation(image))
    except MemoryError:
        raise
    except Exception as error:
        raise InvalidRequestError(DAMAGED) from error


def _find_format(data: bytes) -> Callable[[BytesIO], ImageFile]:
    for start, opens in FORMATS.items():
        if data.startswith(start):
            return opens
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return WebPImagePlugin.WebPImageFile
    others = [name for start, name in OTHER_FORMATS.items() if data.startswith(start)]
    if data[4:8] == b"ftyp":
        others = ["AVIF, HEIC or a video"]
    if others:
        raise InvalidRequestError(f"the image's format is {others[0]}; use {SUPPORTED}")
    raise InvalidRequestError(f"these bytes are not an image; use {SUPPORTED}")


def _refuse_pixels(max_pixels: int) -> NoReturn:
    raise InvalidRequestError(
        f"the image has too many pixels: at most {max_pixels} (--max-image-pixels)"
    )


def _in_rgb(image: Image.Image) -> Image.Image:
    """The image without transparency, on white, as in transformers and vLLM."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image if image.mode == "RGB" else image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")


def _orientation(image: Image.Image) -> int:
    """The orientation in EXIF data; 1, which is no turn, if there are none that can be read."""
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # damaged data of a camera do not make an image useless
        return 1
    return found if isinstance(found, int) else 1


def _turned(image: Image.Image, orientation: int) -> Image.Image:
    turn = TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)
