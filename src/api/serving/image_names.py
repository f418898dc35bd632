"""The names that clients have given to images (`uuid`), to send them once."""

from __future__ import annotations

from collections import OrderedDict

MAX_NAMES = 1024
"""Names of one API key. Images that were named longest ago are forgotten."""


class ImageNames:
    """The digests of images by their names. An API key finds only names that it has given."""

    def __init__(self) -> None:
        self._names: dict[str | None, OrderedDict[tuple[str | None, str], bytes]] = {}

    def put(self, sender: str | None, cache_salt: str | None, uuid: str, digest: bytes) -> None:
        """Remember an image of a sender: the id of its API key. An older one loses the name."""
        names = self._names.setdefault(sender, OrderedDict())
        names[cache_salt, uuid] = digest
        names.move_to_end((cache_salt, uuid))
        if len(names) > MAX_NAMES:
            names.popitem(last=False)

    def get(self, sender: str | None, cache_salt: str | None, uuid: str) -> bytes | None:
        """The digest of an image, or None. A name holds only with the cache salt of the request
        that has given it."""
        names = self._names.get(sender, OrderedDict())
        digest = names.get((cache_salt, uuid))
        if digest is not None:
            names.move_to_end((cache_salt, uuid))
        return digest
