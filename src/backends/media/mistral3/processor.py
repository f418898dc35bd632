"""Images for Mistral 3: each keeps its aspect ratio, and becomes lines of tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ....core.contract.providers.media_processing import MediaSample, Pixels, ProcessedImage
from ....core.errors import ConfigError, InvalidRequestError
from ..settings import other_models
from .cost import cost_of_rectangle
from .settings import MODEL_TYPES, read_settings

if TYPE_CHECKING:
    from PIL.Image import Image


class Mistral3Processor:
    """Makes the same pixels and text as transformers' PixtralProcessor.

    A large image is shrunk until it fits into the largest size. Then each side is rounded up to a
    multiple of `square`, the side of the pixels of a token.
    """

    name = "mistral3"
    media_sample = MediaSample(
        config={
            "model_type": "mistral3",
            "vision_config": {"patch_size": 16},
            "size": {"longest_edge": 256},
        },
        placeholder="[IMG]",
    )

    @classmethod
    def reasons_against(cls, config: Mapping[str, Any]) -> list[str]:
        """See MediaProcessor."""
        if others := other_models(config, MODEL_TYPES):
            return others
        try:
            read_settings(config, {})
        except ConfigError as error:
            return [str(error)]
        return []

    def __init__(self, config: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
        """See MediaProcessor."""
        self._settings = read_settings(config, kwargs)

    def largest_size(self, width: int | None, height: int | None) -> tuple[int, int]:
        """The size of the image with the most tokens that fits into a rectangle. None: no limit.
        All in pixels."""
        settings = self._settings
        return (
            min(width or settings.width, settings.width),
            min(height or settings.height, settings.height),
        )

    def sides(self, width: int, height: int) -> tuple[int, int]:
        """Width and height to which an image is resized. Raises InvalidRequestError for an image
        that would have no pixels."""
        settings = self._settings
        ratio = max(height / settings.height, width / settings.width)
        if ratio > 1:
            width, height = math.floor(width / ratio), math.floor(height / ratio)
        if not width or not height:
            raise InvalidRequestError(
                "the image is too narrow: after it is shrunk to fit into "
                f"{settings.width} x {settings.height} pixels, one side is less than a pixel"
            )
        square = settings.square
        return math.ceil(width / square) * square, math.ceil(height / square) * square

    def num_tokens(self, width: int, height: int) -> int:
        """See MediaProcessor."""
        columns, lines = self._grid(self.sides(width, height))
        return lines * (columns + 1) - 1

    def process(self, image: Image) -> ProcessedImage:
        """See MediaProcessor."""
        settings = self._settings
        width, height = self.sides(*image.size)
        columns, lines = self._grid((width, height))
        pixels = Pixels(
            shape=(height, width, 3),
            data=image.resize((width, height), resample=settings.resample).tobytes(),
            num_tokens=lines * (columns + 1) - 1,
            num_between=lines - 1,
            cost=cost_of_rectangle(settings, width, height),
        )
        line = settings.image_token * columns
        text = settings.break_token.join([line] * lines) + settings.end_token
        return ProcessedImage(text=text, items=(pixels,))

    def _grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Numbers of columns and lines of tokens."""
        return size[0] // self._settings.square, size[1] // self._settings.square
