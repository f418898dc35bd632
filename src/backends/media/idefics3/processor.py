"""Images for Idefics3 and SmolVLM: tiles, then the whole image, all in the size of a tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ....core.contract.providers.media_processing import MediaSample, Pixels, ProcessedImage
from ....core.errors import ConfigError
from ..settings import other_models
from .cost import cost_of_tile
from .settings import MODEL_TYPES, read_settings
from .sizes import Size, tiled_size, whole_size

if TYPE_CHECKING:
    from PIL.Image import Image


class Idefics3Processor:
    """Makes the same pixels and text as transformers' Idefics3Processor and SmolVLMProcessor.

    The tiles come row by row. An image that fits into one tile has only this one.
    """

    name = "idefics3"
    media_sample = MediaSample(
        config={
            "model_type": "idefics3",
            "vision_config": {"patch_size": 16},
            "size": {"longest_edge": 256},
            "max_image_size": {"longest_edge": 64},
        },
        placeholder="<image>",
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
        self._cost = cost_of_tile(config, self._settings.tile)

    @property
    def side(self) -> int:
        """The sides of what one run of the encoder gets, in pixels."""
        return self._settings.tile

    @property
    def tokens_per_item(self) -> int:
        """The number of tokens of one run of the encoder."""
        return self._settings.tokens_per_tile

    def num_tokens(self, width: int, height: int) -> int:
        """See MediaProcessor."""
        columns, rows = self._grid(self._tiled((width, height)))
        return (columns * rows + 1) * self._settings.tokens_per_tile

    def process(self, image: Image) -> ProcessedImage:
        """See MediaProcessor."""
        settings = self._settings
        image = image.resize(
            whole_size(image.size, settings.longest_edge), resample=settings.resample
        )
        tiled = image
        if settings.splits:
            tiled = image.resize(tiled_size(image.size, settings.tile), resample=settings.resample)
        columns, rows = self._grid(tiled.size)
        whole = tiled.resize((settings.tile, settings.tile), resample=settings.resample)
        return ProcessedImage(
            text=self._text(columns, rows),
            items=tuple(self._pixels(one) for one in (*self._cut(tiled, columns, rows), whole)),
        )

    def _tiled(self, size: Size) -> Size:
        """The size of an image before it is cut."""
        size = whole_size(size, self._settings.longest_edge)
        return tiled_size(size, self._settings.tile) if self._settings.splits else size

    def _grid(self, size: Size) -> Size:
        """Numbers of columns and rows of tiles; (0, 0) if there is only the whole image."""
        tile = self._settings.tile
        if not self._settings.splits or max(size) <= tile:
            return 0, 0
        return size[0] // tile, size[1] // tile

    def _cut(self, image: Image, columns: int, rows: int) -> Iterator[Image]:
        tile = self._settings.tile
        for row in range(rows):
            for column in range(columns):
                left, top = column * tile, row * tile
                yield image.crop((left, top, left + tile, top + tile))

    def _pixels(self, image: Image) -> Pixels:
        settings = self._settings
        return Pixels(
            shape=(settings.tile, settings.tile, 3),
            data=image.tobytes(),
            num_tokens=settings.tokens_per_tile,
            cost=self._cost,
        )

    def _text(self, columns: int, rows: int) -> str:
        settings = self._settings
        fake, placeholders = settings.fake_token, settings.image_token * settings.tokens_per_tile
        lines = [
            "".join(
                f"{fake}<row_{row}_col_{column}>{placeholders}" for column in range(1, columns + 1)
            )
            + "\n"
            for row in range(1, rows + 1)
        ]
        end = f"{fake}{settings.global_token}{placeholders}{fake}"
        return "".join(lines) + ("\n" if rows else "") + end
