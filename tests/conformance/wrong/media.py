"""Wrong media processors: each makes one mistake that Idefics3's does not make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from PIL import Image

from tokenmill.backends.media.idefics3.processor import Idefics3Processor
from tokenmill.plugin import ProcessedImage
from tokenmill.testing.conformance.computing import media as suite

from . import fails


class Right(Idefics3Processor):
    def change(self, done: ProcessedImage) -> ProcessedImage:
        return done

    def process(self, image: Image.Image) -> ProcessedImage:
        return self.change(super().process(image))


@fails(suite.check_reasons_are_returned_for_any_model)
class ReturnsNoList(Right):
    @classmethod
    def reasons_against(cls, config: Mapping[str, Any]) -> Any:
        return "; ".join(super().reasons_against(config))


@fails(suite.check_unknown_kwargs_are_refused)
class IgnoresKwargs(Right):
    def __init__(self, config: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__(config, {})


@fails(suite.check_items_have_their_pixels_and_a_cost)
class DropsAByte(Right):
    def change(self, done: ProcessedImage) -> ProcessedImage:
        first, *others = done.items
        return replace(done, items=(replace(first, data=first.data[1:]), *others))


@fails(suite.check_the_text_has_a_place_for_each_row)
class WritesOneMore(Right):
    def change(self, done: ProcessedImage) -> ProcessedImage:
        return replace(done, text=done.text + "<image>")


@fails(suite.check_the_number_of_tokens_is_known_without_pixels)
class ForgetsTheWholeImage(Right):
    def num_tokens(self, width: int, height: int) -> int:
        return super().num_tokens(width, height) - 4


@fails(suite.check_equal_images_become_equal_items)
class Counts(Right):
    """The cost grows with every image."""

    num_seen = 0

    def change(self, done: ProcessedImage) -> ProcessedImage:
        self.num_seen += 1
        return replace(done, items=tuple(replace(one, cost=self.num_seen) for one in done.items))


@fails(suite.check_images_differ_by_their_pixels)
class SeesNothing(Right):
    def change(self, done: ProcessedImage) -> ProcessedImage:
        black = (replace(one, data=bytes(len(one.data))) for one in done.items)
        return replace(done, items=tuple(black))


@fails(suite.check_the_image_is_not_changed)
class PaintsOnTheImage(Right):
    def process(self, image: Image.Image) -> ProcessedImage:
        done = super().process(image)
        image.putpixel((0, 0), (255, 255, 254))
        return done
