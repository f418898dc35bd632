"""Cuts a grey square into tiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tokenmill.plugin import (
    ConfigError,
    InvalidRequestError,
    MediaSample,
    Pixels,
    ProcessedImage,
)

if TYPE_CHECKING:
    from PIL.Image import Image  # the process that decodes images has imported Pillow

TILE = 64
MAX_RATIO = 100
"""Maximum ratio of the sides. A thinner image would be unrecognizable in a square."""


class GreyTiles:
    """`--mm-processor-kwargs '{"tiles": 3}'`: 3 x 3 tiles instead of the number in config.json."""

    name = "grey-tiles"
    media_sample = MediaSample(
        config={"model_type": "grey_tiles", "tiles": 2, "tile_cost": 5}, placeholder="<image>"
    )

    @classmethod
    def reasons_against(cls, config: Mapping[str, Any]) -> list[str]:
        if config.get("model_type") != "grey_tiles":
            return [f"models of type {config.get('model_type')!r} read no grey tiles"]
        return []

    def __init__(self, config: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
        if unknown := kwargs.keys() - {"tiles"}:
            raise ConfigError(
                f"--mm-processor-kwargs: only 'tiles' is known, got {sorted(unknown)}"
            )
        self._tiles = kwargs.get("tiles", config.get("tiles", 2))
        if type(self._tiles) is not int or not 1 <= self._tiles <= 16:
            raise ConfigError(f"tiles must be a number from 1 to 16, got {self._tiles!r}")
        self._cost = config.get("tile_cost", 1)

    def num_tokens(self, width: int, height: int) -> int:
        if max(width, height) > MAX_RATIO * min(width, height):
            raise InvalidRequestError(
                f"one side of an image is more than {MAX_RATIO} times the other"
            )
        tokens: int = self._tiles**2
        return tokens

    def process(self, image: Image) -> ProcessedImage:
        self.num_tokens(*image.size)  # refuses thin images
        places = [TILE * place for place in range(self._tiles)]
        grey = image.convert("L").resize((TILE * self._tiles, TILE * self._tiles))
        items = [
            Pixels(
                shape=(TILE, TILE, 1),
                data=grey.crop((left, top, left + TILE, top + TILE)).tobytes(),
                num_tokens=1,
                cost=self._cost,
            )
            for top in places
            for left in places
        ]
        row = "<image>" * self._tiles
        return ProcessedImage(text="\n".join([row] * self._tiles), items=tuple(items))
