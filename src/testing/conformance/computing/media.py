"""The suite for media processors: images of many sizes become items and text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from ....core.contract.providers.media_processing import (
    MediaProcessor,
    MediaSample,
    Pixels,
    ProcessedImage,
)
from ....core.errors import ConfigError, InvalidRequestError
from ....core.members import MEDIA_SAMPLE
from ..reporting import Report, report_time
from ..suites import suite

Class = type[MediaProcessor]
_SIZES = ((1, 1), (1, 4000), (4000, 1), (3, 2), (64, 64), (333, 257), (1024, 768))
"""Width and height."""
_UNKNOWN = "no_such_setting"


def check_reasons_are_returned_for_any_model(
    media_processor: Class, media_sample: MediaSample | None = None
) -> None:
    """`reasons_against` returns a list of strings for any model, and none for the sample's."""
    for config in ({}, {"model_type": None}, {"model_type": "llama", "size": 3}):
        reasons = media_processor.reasons_against(config)
        assert isinstance(reasons, list), f"reasons_against returned {reasons!r}, not a list"
        assert all(isinstance(one, str) and one for one in reasons), f"not strings: {reasons!r}"
    sample = media_sample or MEDIA_SAMPLE.of(media_processor)
    if sample is not None:
        reasons = media_processor.reasons_against(sample.config)
        assert reasons == [], f"it does not fit its own sample: {reasons!r}"


def check_unknown_kwargs_are_refused(
    media_processor: Class, media_sample: MediaSample | None = None
) -> None:
    """An unknown name in `kwargs` is a ConfigError that shows the name."""
    config = _sample(media_processor, media_sample).config
    try:
        media_processor(config, {_UNKNOWN: 1})
    except ConfigError as error:
        assert _UNKNOWN in str(error), f"the error does not show the name: {error}"
    else:
        raise AssertionError(f"kwargs with {_UNKNOWN!r} were accepted")


def check_items_have_their_pixels_and_a_cost(
    media_processor: Class, media_sample: MediaSample | None = None
) -> None:
    """Each item has three positive sides, their product in bytes, and a positive number of tokens
    and cost."""
    for size, image in _processed(media_processor, media_sample):
        for item in image.items:
            assert isinstance(item, Pixels), f"{size}: an item is {item!r:.100}"
            height, width, channels = item.shape
            assert min(item.shape) > 0, f"{size}: an item has the shape {item.shape}"
            expected = height * width * channels
            assert len(item.data) == expected, f"{size}: {len(item.data)} bytes, not {expected}"
            assert item.num_tokens > 0 and item.cost > 0, f"{size}: {item.num_tokens=} {item.cost=}"


def check_the_text_has_a_place_for_each_row(
    media_processor: Class, media_sample: MediaSample | None = None
) -> None:
    """The text has the placeholder once per row of the items, and other tokens between those of one
    item only if it has `num_between`."""
    placeholder = _sample(media_processor, media_sample).placeholder
    for size, image in _processed(media_processor, media_sample):
        rest = image.text
        for item in image.items:
            num_rows, before = item.num_tokens - item.num_between, rest.partition(placeholder)[0]
            parts = rest[len(before) :].split(placeholder, num_rows)
            gaps = parts[1:-1]
            assert len(parts) == num_rows + 1, f"{size}: no room for an item after {before!r}"
            if not item.num_between:
                assert not any(gaps), f"{size}: an item after {before!r} has gaps"
            rest = parts[-1]
        assert placeholder not in rest, f"{size}: the text has more placeholders than its items"


def check_the_number_of_tokens_is_known_without_pixels(
    media_processor: Class, media_sample: MediaSample | None = None
) -> None:
    """`num_tokens` is the sum over the items, or refuses a size that `process` refuses as well."""
    for size, expected in _numbers(media_processor, media_sample):
        found = None
        with suppress(InvalidRequestError):
            found = _made(media_processor, media_sample).num_tokens(*size)
        assert found == expected, f"{size}: num_tokens says {found}, the items have {expected}"


def check_equal_images_become_equal_items(
    media_processor: Class, media_sample: MediaSample | None = None
) -> None:
    """An image becomes the same after other images, and in another object."""
    one = _made(media_processor, media_sample)
    first = [_process(one, size) for size in _SIZES]
    again = [_process(one, size) for size in reversed(_SIZES)][::-1]
    assert first == again, "an earlier image changed the result"
    other = _made(media_processor, media_sample)
    assert first == [_process(other, size) for size in _SIZES], "two objects differ"


def check_images_differ_by_their_pixels(
    media_processor: Class, media_sample: MediaSample | None = None
) -> None:
    """A dark and a bright image have other pixels."""
    one = _made(media_processor, media_sample)
    dark, bright = (_process(one, (64, 48), grey) for grey in (0, 255))
    assert dark is None or dark != bright, "a dark and a bright image become the same"


def check_the_image_is_not_changed(
    media_processor: Class, media_sample: MediaSample | None = None
) -> None:
    """`process` leaves the image that it gets as it was."""
    one = _made(media_processor, media_sample)
    image = _image((333, 257))
    before = image.size, image.tobytes()
    _answered(one, image)
    assert (image.size, image.tobytes()) == before, "process changed the image"


def check_time_is_reported(
    media_processor: Class, report: Report, media_sample: MediaSample | None = None
) -> None:
    """Report the time for an image of 1024 x 768 pixels. There is no limit."""
    one, image = _made(media_processor, media_sample), _image((1024, 768))
    started = time.perf_counter()
    _answered(one, image)
    report_time(report, "process()", time.perf_counter() - started)


@suite
class MediaProcessorConformance:
    """The suite for a media processor.

    Subclass it as Test..., with a fixture `media_processor` that returns the processor's class, and
    a fixture `media_sample` that returns a MediaSample. Without it, the class's own `media_sample`
    is used; without that, only the reasons are tested. It needs Pillow.
    """


def _sample(media_processor: Class, media_sample: MediaSample | None) -> MediaSample:
    sample = media_sample or MEDIA_SAMPLE.of(media_processor)
    if sample is None:
        pytest.skip("the media processor has no media_sample")
    assert isinstance(sample, MediaSample), f"media_sample is {sample!r:.100}"
    return sample


def _made(media_processor: Class, media_sample: MediaSample | None) -> MediaProcessor:
    return media_processor(_sample(media_processor, media_sample).config, {})


def _processed(
    media_processor: Class, media_sample: MediaSample | None
) -> list[tuple[tuple[int, int], ProcessedImage]]:
    """The sizes that it does not refuse, with the result of each."""
    one = _made(media_processor, media_sample)
    results = [(size, _process(one, size)) for size in _SIZES]
    accepted = [(size, image) for size, image in results if image is not None]
    assert accepted, "every image was refused"
    return accepted


def _numbers(
    media_processor: Class, media_sample: MediaSample | None
) -> list[tuple[tuple[int, int], int | None]]:
    """The number of tokens of all items, by size; None if the size is refused."""
    found: Mapping[Any, ProcessedImage] = dict(_processed(media_processor, media_sample))
    return [
        (size, sum(item.num_tokens for item in found[size].items) if size in found else None)
        for size in _SIZES
    ]


def _process(
    processor: MediaProcessor, size: tuple[int, int], grey: int | None = None
) -> ProcessedImage | None:
    return _answered(processor, _image(size, grey))


def _answered(processor: MediaProcessor, image: Any) -> ProcessedImage | None:
    """The result; None if the processor refuses the image."""
    try:
        done = processor.process(image)
    except InvalidRequestError as refusal:
        assert str(refusal).isprintable(), f"a message is one line, not {str(refusal)!r}"
        return None
    assert isinstance(done, ProcessedImage), f"process returned {done!r:.100}"
    assert isinstance(done.items, tuple) and done.items, f"an image has items, not {done.items!r}"
    return done


def _image(size: tuple[int, int], grey: int | None = None) -> Any:
    """A PIL image: random and always the same, or of one grey."""
    images = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    if grey is not None:
        return images.new("RGB", size, (grey,) * 3)
    width, height = size
    period = bytes(range(251))  # a prime number: rows differ
    pixels = period * (width * height * 3 // len(period) + 1)
    return images.frombytes("RGB", size, pixels[: width * height * 3])
