"""Images for Gemma 3: each is resized to the size of the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ....core.contract.providers.media_processing import MediaSample, Pixels, ProcessedImage
from ..settings import other_models
from .settings import MODEL_TYPES, read_settings

if TYPE_CHECKING:
    from PIL.Image import Image


class Gemma3Processor:
    """Makes the same pixels and text as transformers' Gemma3Processor, without pan and scan.

    The blank lines around an image are not in its text: see `frame_images` of HFTokenizer.
    """

    name = "gemma3"
    media_sample = MediaSample(
        config={
            "model_type": "gemma3",
            "vision_config": {"image_size": 64, "patch_size": 16},
            "mm_tokens_per_image": 4,
        },
        placeholder="<image_soft_token>",
    )

    @classmethod
    def reasons_against(cls, config: Mapping[str, Any]) -> list[str]:
        """See MediaProcessor."""
        return other_models(config, MODEL_TYPES)

    def __init__(self, config: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
        """See MediaProcessor."""
        self._settings = read_settings(config, kwargs)

    @property
    def side(self) -> int:
        """The sides of what one run of the encoder gets, in pixels."""
        return self._settings.side

    @property
    def tokens_per_item(self) -> int:
        """The number of tokens of one run of the encoder."""
        return self._settings.num_tokens

    def num_tokens(self, width: int, height: int) -> int:
        """See MediaProcessor."""
        return self._settings.num_tokens

    def process(self, image: Image) -> ProcessedImage:
        """See MediaProcessor."""
        settings = self._settings
        resized = image.resize((settings.side, settings.side), resample=settings.resample)
        pixels = Pixels(
            shape=(settings.side, settings.side, 3),
            data=resized.tobytes(),
            num_tokens=settings.num_tokens,
            cost=settings.cost,
            is_whole=True,
        )
        text = settings.begin + settings.image_token * settings.num_tokens + settings.end
        return ProcessedImage(text=text, items=(pixels,))
