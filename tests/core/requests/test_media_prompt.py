"""Placeholders in the tokens of a chat are replaced by the tokens and items of images."""

from __future__ import annotations

import pytest

from tokenmill.core.errors import InvalidRequestError
from tokenmill.core.requests.media import MediaItem
from tokenmill.core.requests.media_prompt import ReadImage, place_images

P = 99
"""The placeholder."""


def image(name: bytes, token_ids: tuple[int, ...], *starts: int) -> ReadImage:
    """An image with an item of two tokens at each of these places."""
    items = (
        MediaItem(
            digest=name + bytes([number]),
            start=start,
            num_tokens=2,
            cost=5,
            shape=(1, 1, 3),
            pixels=name,
        )
        for number, start in enumerate(starts)
    )
    return ReadImage(digest=name, token_ids=token_ids, items=tuple(items))


CAT = image(b"cat", (1, P, P, 2, P, P), 1, 4)
DOG = image(b"dog", (P, P), 0)


def test_each_placeholder_is_replaced_by_the_image_in_its_order() -> None:
    prompt = place_images([7, P, 8, P, P], [CAT, DOG, CAT], P)
    assert prompt.token_ids == [7, *CAT.token_ids, 8, *DOG.token_ids, *CAT.token_ids]
    assert [(item.digest, item.start) for item in prompt.items] == [
        (b"cat\0", 2),
        (b"cat\1", 5),
        (b"dog\0", 8),
        (b"cat\0", 11),
        (b"cat\1", 14),
    ]
    for item in prompt.items:
        assert prompt.token_ids[item.start : item.end] == [P, P]


def test_a_prompt_without_images_stays_as_it_is() -> None:
    prompt = place_images((1, 2, 3), [], P)
    assert list(prompt.token_ids) == [1, 2, 3]
    assert prompt.items == ()


@pytest.mark.parametrize(
    ("token_ids", "why"),
    [([1, 2], "shows 0 of 1 images"), ([P, P], "has places for 2 images, got 1")],
)
def test_other_numbers_of_placeholders_than_images_are_refused(
    token_ids: list[int], why: str
) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        place_images(token_ids, [DOG], P)
