"""Images for Qwen2.5-VL: each keeps its aspect ratio, and has a number of tokens by its size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ....core.contract.providers.media_processing import MediaSample, Pixels, ProcessedImage
from ..settings import other_models
from .settings import MODEL_TYPES, read_settings
from .sizes import most_tokens, resized

if TYPE_CHECKING:
    from PIL.Image import Image


class Qwen2VLProcessor:
    """Makes the same pixels and text as transformers' Qwen2VLImageProcessor.

    transformers makes a video of two equal frames from a still image. Here the encoder repeats the
    frame, so the image is kept once.
    """

    name = "qwen2-vl"
    media_sample = MediaSample(
        config={"model_type": "qwen2_5_vl", "max_pixels": 28 * 28 * 16},
        placeholder="<|image_pad|>",
    )

    @classmethod
    def reasons_against(cls, config: Mapping[str, Any]) -> list[str]:
        """See MediaProcessor."""
        return other_models(config, MODEL_TYPES)

    def __init__(self, config: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
        """See MediaProcessor."""
        self._settings = read_settings(config, kwargs)

    @property
    def unit(self) -> int:
        """The sides of the square that becomes one token, in pixels."""
        return self._settings.unit

    def most_tokens(self, width: int | None, height: int | None) -> int:
        """No image that fits into a rectangle has more tokens. None: no limit. In pixels."""
        settings = self._settings
        return most_tokens(
            unit=settings.unit,
            min_pixels=settings.min_pixels,
            max_pixels=settings.max_pixels,
            width=width,
            height=height,
        )

    def num_tokens(self, width: int, height: int) -> int:
        """See MediaProcessor."""
        new_width, new_height = self._resized(width, height)
        return new_width * new_height // self.unit**2

    def process(self, image: Image) -> ProcessedImage:
        """See MediaProcessor."""
        settings = self._settings
        width, height = self._resized(image.width, image.height)
        rows, columns = height // self.unit, width // self.unit
        pixels = Pixels(
            shape=(height, width, 3),
            data=image.resize((width, height), resample=settings.resample).tobytes(),
            num_tokens=rows * columns,
            cost=settings.cost.of(rows * columns),
            grid=(1, rows, columns),
        )
        return ProcessedImage(text=settings.image_token * (rows * columns), items=(pixels,))

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        settings = self._settings
        return resized(
            width,
            height,
            unit=settings.unit,
            min_pixels=settings.min_pixels,
            max_pixels=settings.max_pixels,
        )
