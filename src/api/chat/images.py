"""The images of a conversation: in the order of its messages, new ones and known ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...core.errors import InvalidRequestError
from ...core.requests.given_images import GivenImage
from ...core.requests.media_prompt import ReadImage
from ..serving.context import AppContext

Messages = Sequence[Mapping[str, Any]]


def images_in_order(messages: Messages, images: Sequence[GivenImage]) -> list[GivenImage]:
    """The images, in the order of their parts in the messages for the chat template."""
    parts = (
        part
        for message in messages
        if isinstance(content := message.get("content"), list)
        for part in content
    )
    return [images[part["image"]] for part in parts if _is_image(part)]


def encode_images(
    messages: Messages,
    images: Sequence[GivenImage],
    encode: Callable[[Messages], list[int]],
    num_places: Callable[[Sequence[int]], int],
) -> list[int]:
    """Encode messages with these images, and return the token ids.

    `num_places` counts the places of images in token ids. Raises InvalidRequestError for the first
    image that the chat template does not show. If `encode` fails even without images, its error is
    raised.
    """

    def hides_one(num_images: int) -> bool:
        """Whether the chat template hides one of the first `num_images` images."""
        try:
            token_ids = encode(list(_with_first(messages, num_images)))
        except InvalidRequestError:
            return True
        return num_places(token_ids) < num_images

    with suppress(InvalidRequestError):
        token_ids = encode(messages)
        if num_places(token_ids) >= len(images):
            return token_ids
    hidden = bisect_left(range(len(images)), True, key=hides_one)
    if hidden > 0:
        raise images[hidden - 1].refused(
            "the model's chat template shows no images in this message"
        )
    return encode(messages)


def _with_first(messages: Messages, num_images: int) -> Iterator[Mapping[str, Any]]:
    """The messages with the first `num_images` images. Empty texts replace the other images."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            kept = []
            for part in content:
                num_images -= _is_image(part)
                is_left = num_images < 0 and _is_image(part)
                kept.append({"type": "text", "text": ""} if is_left else part)
            message = {**message, "content": kept}
        yield message


def _is_image(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "image"


async def read_image(
    image: GivenImage, context: AppContext, sender: str | None, cache_salt: str | None
) -> ReadImage:
    """Decode and process an image, unless it is known. What it is called is remembered for its
    sender.

    Raises InvalidRequestError with the image's place, for an unknown name without data, too, and
    OverloadedError.
    """
    reading, names = context.engine.images, context.image_names
    if image.source is None:
        if image.uuid is None:
            raise image.refused("the image has no URL")
        digest = names.get(sender, cache_salt, image.uuid)
        found = None if digest is None else reading.known(digest)
        if found is None:
            raise image.refused("no image with this uuid is known: send it again, with its data")
        return found
    found = await reading.read(image, cache_salt)
    if image.uuid is not None:
        names.put(sender, cache_salt, image.uuid, found.digest)
    return found
