"""Turns the bytes of images into items, and keeps those that were used last."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from ...core.contract.providers.media_processing import Pixels, ProcessedImage
from ...core.errors import InvalidRequestError, RequestFailedError
from ...core.interfaces import Tokenizer
from ...core.last_used import LastUsed
from ...core.log import get_logger
from ...core.requests.media import MediaItem
from ...core.requests.media_prompt import ReadImage
from ...core.shared_work import SharedWork
from .messages import ProcessorStart
from .processing import BUG, MediaProcess

log = get_logger("media")

MAX_WAITING = 64
"""Maximum number of images that are decoded or wait for it. Most take 0.2 s."""
MAX_WAITING_BYTES = 256 << 20
"""The same for the bytes of their files. A single image may be larger."""
MAX_FILE_BYTES = 64 << 20
"""Maximum size of the file of an image."""
MAX_KEPT = 1 << 14
"""Maximum number of images that are kept."""
BLOCKING_BYTES = 1 << 18
"""Maximum number of bytes that the event loop hashes itself, in 0.5 ms or less."""
NO_PILLOW = "this server cannot read images: it needs pip install 'tokenmill[vision]'"


class ImageReader:
    """The MediaReader of core/interfaces. A process of its own decodes one image after the other;
    it starts with the first one. A bad image can end it, but no other image."""

    def __init__(
        self,
        start: ProcessorStart,
        tokenizer: Tokenizer,
        *,
        placeholder_token_id: int,
        cache_bytes: int,
    ) -> None:
        """`cache_bytes`: memory for the pixels of known images; 0: none are kept."""
        self._process = MediaProcess(start)
        self._plugin = start.plugin
        self._tokenizer, self._placeholder = tokenizer, placeholder_token_id
        settings = json.dumps(
            [start.factory, start.options, start.config, start.kwargs], sort_keys=True
        )
        self._settings = hashlib.sha256(settings.encode()).digest()
        self._cache_bytes = cache_bytes
        self._known = LastUsed[bytes, ReadImage](max_count=MAX_KEPT, max_size=cache_bytes)
        self._work = SharedWork[bytes, ReadImage](
            "images",
            max_count=MAX_WAITING,
            max_size=MAX_WAITING_BYTES,
            too_many="too many images wait to be decoded; try again later",
        )

    async def read(self, data: bytes, salt: str = "") -> ReadImage:
        if len(data) > MAX_FILE_BYTES:
            raise InvalidRequestError(f"the image's file has over {MAX_FILE_BYTES >> 20} MiB")
        if len(data) <= BLOCKING_BYTES:
            digest = self._digest(data, salt)
        else:
            digest = await asyncio.to_thread(self._digest, data, salt)
        if (known := self._known.get(digest)) is not None:
            return known
        if find_spec("PIL") is None:
            raise InvalidRequestError(NO_PILLOW)
        return await self._work.run(digest, lambda: self._read(digest, data), len(data))

    def find(self, digest: bytes) -> ReadImage | None:
        return self._known.get(digest)

    def close(self) -> None:
        self._work.close()
        self._process.close()

    def _read(self, digest: bytes, data: bytes) -> ReadImage:
        """Decode, process and keep an image, on the thread."""
        if (known := self._known.get(digest)) is not None:  # a caller that has left asked for it
            return known
        image = self._made(digest, self._process.process(data))
        if image.num_bytes <= self._cache_bytes:
            self._known.put(digest, image, image.num_bytes)
        return image

    def _made(self, digest: bytes, image: ProcessedImage) -> ReadImage:
        token_ids = self._tokenizer.encode(image.text, add_special_tokens=False, parse_special=True)
        starts = _starts(token_ids, self._placeholder, image.items)
        if starts is None or not all(map(_fits, image.items)):
            log.error("wrong_media_places", plugin=self._plugin, text=image.text[:200])
            raise RequestFailedError(BUG)
        items = (
            MediaItem(
                digest=hashlib.sha256(digest + number.to_bytes(4, "big")).digest(),
                start=start,
                num_tokens=one.num_tokens,
                num_between=one.num_between,
                cost=one.cost,
                shape=one.shape,
                pixels=one.data,
                is_whole=one.is_whole,
                grid=one.grid,
            )
            for number, (start, one) in enumerate(zip(starts, image.items, strict=True))
        )
        return ReadImage(digest=digest, token_ids=tuple(token_ids), items=tuple(items))

    def _digest(self, data: bytes, salt: str) -> bytes:
        """See ReadImage.digest. All parts have a fixed length, so no two inputs look alike."""
        inputs = data, salt.encode(errors="surrogatepass")
        parts = (hashlib.sha256(one).digest() for one in inputs)
        return hashlib.sha256(b"".join((*parts, self._settings))).digest()


def _fits(item: Pixels) -> bool:
    """Whether an item and its grid have the same number of tokens."""
    return not item.grid or (
        len(item.grid) == 3 and min(item.grid) > 0 and math.prod(item.grid) == item.num_tokens
    )


def _starts(token_ids: list[int], placeholder: int, items: Sequence[Pixels]) -> list[int] | None:
    """The first places of items. None if other tokens are placeholders."""
    places: Iterator[int] = (at for at, token_id in enumerate(token_ids) if token_id == placeholder)
    starts = []
    for item in items:
        num_rows = item.num_tokens - item.num_between
        place = [at for _, at in zip(range(num_rows), places, strict=False)]
        if not place or len(place) < num_rows or place[-1] - place[0] != item.num_tokens - 1:
            return None
        starts.append(place[0])
    return starts if next(places, None) is None else None
