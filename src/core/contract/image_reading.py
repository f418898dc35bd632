"""Reads the images of a request, and puts them into its prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..config import EngineConfig
from ..errors import InvalidRequestError
from ..interfaces import MediaReader, ModelInfo
from ..requests.given_images import GivenImage, image_bytes
from ..requests.media_prompt import MediaPrompt, ReadImage, place_images


class ImageReading:
    """The images of one model's requests."""

    def __init__(self, reader: MediaReader | None, info: ModelInfo, config: EngineConfig) -> None:
        """`reader`: None if the model reads only text."""
        self._reader = reader
        self._info = info
        self._config = config
        self._limit = config.image_limit.count

    @property
    def reads_images(self) -> bool:
        """Whether a request may have images."""
        return self._reader is not None and self._limit > 0

    def check(self, images: Sequence[GivenImage]) -> None:
        """Raise InvalidRequestError for images that no request, or no single one, may have."""
        if not images:
            return
        if self._config.language_model_only:
            raise images[0].refused("this server reads only text (--language-model-only)")
        if len(images) > self._limit:
            raise InvalidRequestError(
                f"at most {self._limit} images per prompt (--limit-mm-per-prompt), "
                f"got {len(images)}",
                param=images[self._limit].place,
            )
        if self._reader is None:
            raise images[0].refused(f"the model {self._info.name} reads only text")

    async def read(self, image: GivenImage, salt: str | None) -> ReadImage:
        """Decode and process an image, unless it is known; `salt`: the request's cache salt.

        Raises InvalidRequestError with the image's place, and what MediaReader.read raises.
        """
        data = await asyncio.to_thread(image_bytes, image, self._config.allowed_local_media_path)
        assert self._reader is not None, "the image was checked"
        try:
            return await self._reader.read(data, salt or "")
        except InvalidRequestError as error:
            raise image.refused(str(error)) from error

    def known(self, digest: bytes) -> ReadImage | None:
        """An image that was read before, by its digest."""
        return None if self._reader is None else self._reader.find(digest)

    def placed(self, token_ids: Sequence[int], images: Sequence[ReadImage]) -> MediaPrompt:
        """The prompt in which each token that shows an image is replaced by one, in order.

        Raises InvalidRequestError if there are more or fewer such tokens than images.
        """
        return place_images(token_ids, images, self._shown_token_id)

    def num_places(self, token_ids: Sequence[int]) -> int:
        """The number of tokens that stand for an image."""
        return token_ids.count(self._shown_token_id)

    @property
    def _shown_token_id(self) -> int:
        media = self._info.media
        assert media is not None, "the images were checked"
        shown = media.shown_token_id
        return media.placeholder_token_id if shown is None else shown

    def close(self) -> None:
        """Free the resources of the reader."""
        if self._reader is not None:
            self._reader.close()
