"""The images of a conversation: in the order of its messages, new ones and known ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.requests.given_images import GivenImage
from ...core.requests.media_prompt import ReadImage
from ..serving.context import AppContext


def shown_images(
    messages: Sequence[Mapping[str, Any]], images: Sequence[GivenImage]
) -> list[GivenImage]:
    """The images in the order in which messages for the chat template have them.

    Raises InvalidRequestError for an image that is in none of them: for models without messages
    with results of tools, these become text.
    """
    parts = (
        part
        for message in messages
        if isinstance(content := message.get("content"), list)
        for part in content
    )
    numbers = [part["image"] for part in parts if part.get("type") == "image"]
    for number in sorted(set(range(len(images))).difference(numbers)):
        raise images[number].refused("the model's chat template shows no images in this message")
    return [images[number] for number in numbers]


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
