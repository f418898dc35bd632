"""Where an engine lives, and whether it takes requests: the same for its shell and what runs it."""

from __future__ import annotations

from ..errors import EngineStoppedError
from .home import Home

DRAINING = "the engine is shutting down and accepts no new requests"


class Life:
    """The event loop of an engine, and how far its end is."""

    def __init__(self) -> None:
        self.home = Home()
        self.is_draining = False
        self.is_closed = False

    @property
    def is_ending(self) -> bool:
        """Whether it takes no more requests."""
        return self.is_draining or self.is_closed

    def check_accepting(self) -> None:
        """Raise EngineStoppedError if it takes no more requests."""
        if self.is_ending:
            raise EngineStoppedError(DRAINING)
