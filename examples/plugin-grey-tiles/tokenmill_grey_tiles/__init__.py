"""Images become grey tiles of one size."""

from tokenmill.plugin import Registry, hookimpl, kinds

TOKENMILL_API = (1, 1)  # lowest and highest hook API that this was written for


def make_grey_tiles() -> type:
    """Grey tiles of 64 x 64 pixels."""
    from .processor import GreyTiles

    return GreyTiles


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.MEDIA_PROCESSOR, "grey-tiles", make_grey_tiles)
