"""Messages between the server's process and the process that decodes images.

The first message to that process is a ProcessorStart; each later one is the bytes of an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...core.contract.providers.media_processing import ProcessedImage
from ...core.processes.channels.messages import Message, NotStarted, Refused


class ProcessorStart(Message, frozen=True):
    """The class of the media processor, and its arguments."""

    plugin: str
    """The plugin that offers it, for logs."""
    factory: str
    """ "package.module:function"."""
    options: Mapping[str, Any]
    options_type: str | None
    """"package.module:Class" of the dataclass that the factory takes; None if it takes none."""
    config: Mapping[str, Any]
    kwargs: Mapping[str, Any]
    """Both: see MediaProcessor.__init__."""
    max_pixels: int
    """Maximum number of pixels of an image, before it is resized."""


class Ready(Message, frozen=True):
    """The process is ready for images."""


class Processed(Message, frozen=True):
    """The result of an image."""

    image: ProcessedImage


class Failed(Message, frozen=True):
    """The media processor has raised an exception that it must not raise."""

    reason: str
    """For a log."""


Reply = Ready | NotStarted | Processed | Refused | Failed
decode_reply = msgspec.msgpack.Decoder(Reply).decode
decode_start = msgspec.msgpack.Decoder(ProcessorStart).decode
