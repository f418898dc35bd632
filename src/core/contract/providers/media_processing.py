"""The contract of media processors: the bytes of an image become items of the encoder.

A processor runs in a process of its own, which the server ends when it needs too much time or
memory. It imports neither torch nor the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """The pixels of one run of the encoder, and the number of tokens that its result fills."""

    shape: tuple[int, ...]
    """[height, width, channels]."""
    data: bytes
    """One byte per number."""
    num_tokens: int
    """The tokens from its first row to its last one."""
    num_between: int = 0
    """The number of tokens among `num_tokens` that keep their own embeddings, such as those between
    the lines of an image in Mistral 3. In their places, the encoder's result has unused rows."""
    cost: int
    """The cost of the encoder's run, in prompt tokens of the model."""
    is_whole: bool = False
    """Whether its tokens see each other in the model's attention. One step computes them all then,
    and they are at most `MediaInfo.largest_span_tokens`."""
    grid: tuple[int, ...] = ()
    """[frames, rows, columns] of its tokens, which are in the order of rows. For models in which a
    token's position depends on its place in the image. Empty: positions count up, as in text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessedImage:
    """The text and the items that stand in the place of one image in the prompt."""

    text: str
    """Encoded with special tokens. It has the placeholder's text once per row of its items. Between
    the placeholders of one item, only its `num_between` other tokens may stand."""
    items: tuple[Pixels, ...]
    """In the order of their places in `text`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSample:
    """A model for the conformance suite of a media processor."""

    config: Mapping[str, Any]
    """Fields of MediaInfo.config that the processor reads."""
    placeholder: str
    """The text of the model's placeholder."""


class MediaProcessor(Protocol):
    """Turns images into items, for models of some architectures.

    The factory that Registry.offer gets is a function of a module, because another process imports
    it by name. It returns the class. The class may have `media_sample`, a MediaSample, for the
    conformance suite.
    """

    name: str

    @classmethod
    def reasons_against(cls, config: Mapping[str, Any]) -> Sequence[str]:
        """Return every reason why it cannot process images for a model, whose `MediaInfo.config`
        this is; empty if it can."""
        ...

    def __init__(self, config: Mapping[str, Any], kwargs: Mapping[str, Any]) -> None:
        """`kwargs`: what --mm-processor-kwargs changes. Raises ConfigError for unknown names and
        for values that do not work."""
        ...

    def num_tokens(self, width: int, height: int) -> int:
        """The number of tokens that the items of an image of this size fill, without its pixels.

        The tokens between its items do not count. Raises InvalidRequestError for sides that the
        model cannot read.
        """
        ...

    def process(self, image: Any) -> ProcessedImage:
        """`image` is a PIL image in RGB, turned as its EXIF data says. Raises InvalidRequestError
        for sides that the model cannot read."""
        ...
