"""Images as requests give them: data URLs, file URLs, bytes of files, and Pillow's images."""

from __future__ import annotations

import binascii
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..errors import InvalidRequestError
from .media_prompt import EnginePrompt

MAX_FILE_BYTES = 20 << 20
"""Maximum size of a file that a URL names."""
_MAX_HEAD = 256
"""Characters of a data URL before its data."""
_PIECE = 1 << 19
"""Characters of base64 that are decoded at once, in 2 ms or less; a multiple of 4."""
_PILLOW = "PIL"
_KINDS = ("image_url", "image_pil", "image")
"""Types of parts that are images; the data are in the field of the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenImage:
    source: object
    """A URL, the bytes of a file, or an image of Pillow. None: only `uuid` names it."""
    place: str
    """Its place in the request, for errors: "messages[1].content[0]"."""
    uuid: str | None = None
    """The sender's name for it."""

    def refused(self, message: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self.place}: {message}", param=self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePrompt:
    """A text or token ids with a placeholder for each image, and the images in order."""

    tokens: str | Sequence[int]
    images: tuple[GivenImage, ...]


Prompt = EnginePrompt | ImagePrompt | Mapping[str, Any]
"""A prompt of a program. A mapping is one of vLLM's prompts: see EngineClient.submit."""


def take_images(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[GivenImage]]:
    """Messages of a program whose images are parts `{"type": "image", "image": NUMBER}`, and these
    images in order.

    An image is a part of the type "image_url", "image_pil" or "image", with the image in the field
    of the same name. Everything else stays as it is.
    """
    images: list[GivenImage] = []

    def without_image(part: Any, place: str) -> Any:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in _KINDS:
            return part
        source = part.get(kind)
        if isinstance(source, Mapping):
            source = source.get("url")
        images.append(GivenImage(source=source, place=place))
        return {"type": "image", "image": len(images) - 1}

    found: list[Mapping[str, Any]] = []
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, Sequence) and not isinstance(content, str | bytes):
            parts = [
                without_image(part, f"messages[{index}].content[{number}]")
                for number, part in enumerate(content)
            ]
            message = {**message, "content": parts}
        found.append(message)
    return found, images


def image_bytes(image: GivenImage, folder: str | None) -> bytes:
    """The bytes of an image's file. `folder`: the one below which file URLs are allowed.

    Raises InvalidRequestError with the image's place, for everything but data URLs, allowed file
    URLs, bytes, and images of Pillow. The bytes are not checked.
    """
    source = image.source
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str):
        return _from_url(source, image, folder)
    if type(source).__module__.partition(".")[0] == _PILLOW:
        return _from_pillow(source)
    raise image.refused(
        f"an image is a data URL, bytes or an image of Pillow, got {type(source).__name__}"
    )


def _from_url(url: str, image: GivenImage, folder: str | None) -> bytes:
    scheme = url[:16].partition(":")[0].lower()
    if scheme == "data":
        return _from_data_url(url, image)
    if scheme == "file":
        if folder is None:
            raise image.refused("file URLs are not allowed (--allowed-local-media-path)")
        return _from_file(url, image, Path(folder))
    if scheme in ("http", "https"):
        raise image.refused("this server opens no connections: send the image as a data URL")
    raise image.refused("the URL of an image must begin with data:image/...;base64,")


def _from_data_url(url: str, image: GivenImage) -> bytes:
    end = url.find(",", 0, _MAX_HEAD)
    if end < 0 or not url[:end].lower().endswith(";base64"):
        raise image.refused("the URL of an image must begin with data:image/...;base64,")
    try:
        data = b"".join(_decoded(url, end + 1))
    except ValueError:  # binascii.Error is one
        raise image.refused("the data of the image are not base64") from None
    if not data:
        raise image.refused("the image has no data")
    return data


def _decoded(text: str, start: int) -> Iterator[bytes]:
    """Base64 in pieces, between which other threads run. Raises ValueError."""
    for begin in range(start, len(text), _PIECE):
        piece = text[begin : begin + _PIECE]
        if piece.endswith("=") and begin + _PIECE < len(text):
            raise ValueError("it goes on after its padding")
        data = binascii.a2b_base64(piece, strict_mode=True)
        if len(data) != len(piece) // 4 * 3 - piece[-2:].count("="):
            raise ValueError("it has too much padding")
        yield data


def _from_file(url: str, image: GivenImage, folder: Path) -> bytes:
    """The bytes of a regular file below the folder. What the error says does not depend on the
    files elsewhere."""
    refused = image.refused("the URL names no regular file below --allowed-local-media-path")
    data = None
    with suppress(OSError, ValueError):  # such as a NUL in the path
        parts = urlsplit(url)
        if parts.netloc in ("", "localhost") and not parts.query and not parts.fragment:
            folder = folder.resolve(strict=True)
            path = Path(unquote(parts.path)).resolve(strict=True)
            data = _read_below(folder, path.relative_to(folder).parts)
    if data is None:
        raise refused
    if len(data) > MAX_FILE_BYTES:
        raise image.refused(f"the file is larger than {MAX_FILE_BYTES} bytes")
    return data


def _read_below(folder: Path, names: Sequence[str]) -> bytes | None:
    """The first bytes of a file; None if it is no regular one. Raises OSError, for a link, too: the
    path had none when it was resolved."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    opened = os.open(folder, flags | os.O_DIRECTORY)
    for number, name in enumerate(names, 1):
        kind = os.O_DIRECTORY if number < len(names) else 0
        try:
            inner = os.open(name, flags | kind, dir_fd=opened)
        finally:
            os.close(opened)
        opened = inner
    with open(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return None
        return file.read(MAX_FILE_BYTES + 1)


def _from_pillow(source: Any) -> bytes:
    """The same pixels as a file: turned as its EXIF data says, because PNG files rarely have it."""
    from PIL import ImageOps

    image = ImageOps.exif_transpose(source)
    if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        image = image.convert("RGB")
    file = BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()
