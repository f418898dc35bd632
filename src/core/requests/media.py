"""Images in prompts, as the engine sees them: items that an encoder turns into rows of the input.

An item is one run of the encoder: a tile of an image, or a whole image. Pixels travel with the
request, never in plans. A *span* is the tokens of an item that see each other: a later one changes
what an earlier one computes, so one step computes them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaItem:
    """One run of the encoder, and the tokens of the prompt that its result fills."""

    digest: bytes
    """SHA-256 over everything that its embeddings, `is_whole` and `grid` depend on, and the salt of
    the request. Items with the same digest are encoded once."""
    start: int
    """Position of its first token in the prompt."""
    num_tokens: int
    """Number of tokens from `start` on, from its first row to its last one. Each placeholder token
    of the model among them gets a row."""
    num_between: int = 0
    """The number of other tokens among them. They keep their own embeddings."""
    cost: int
    """The cost of the encoder's run in a step, in prompt tokens."""
    shape: tuple[int, ...]
    """Shape of the pixels: [height, width, channels]."""
    pixels: bytes
    """One byte per number, in the order of `shape`."""
    is_whole: bool = False
    """Whether its tokens are a span."""
    grid: tuple[int, ...] = ()
    """See MediaPlace."""

    def is_shown_by(self, token_ids: Sequence[int], placeholder: int) -> bool:
        """Whether `token_ids`, the tokens from `start` on, have the placeholders of this item."""
        return (
            len(token_ids) == self.num_tokens > 0
            and token_ids[0] == token_ids[-1] == placeholder
            and token_ids.count(placeholder) == self.num_tokens - self.num_between
        )

    @property
    def end(self) -> int:
        """Position after its last token."""
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPlace:
    """The place of an encoded item in the prompt of a request."""

    digest: bytes
    start: int
    num_tokens: int
    is_whole: bool = False
    """Whether its tokens are a span. Then each grant has all of them, or none."""
    grid: tuple[int, ...] = ()
    """[frames, rows, columns] of its tokens, for models in which a token's position depends on its
    place in the image. Empty: positions count up, as in text."""


def media_in(items: Sequence[MediaItem], start: int, end: int) -> bytes:
    """The digests of the items with tokens in [start, end), each with its place from `start` on.
    Two stretches of tokens with equal bytes show the same parts of the same images."""
    return b"".join(
        item.digest + (item.start - start).to_bytes(8, "little", signed=True)
        for item in items
        if item.start < end and start < item.end
    )


def before_span(items: Sequence[MediaItem], position: int) -> int:
    """The last position up to `position` that is not inside a span."""
    for item in reversed(items):
        if item.end <= position:
            break
        if item.is_whole and item.start < position:
            return item.start
    return position


def cover_spans(items: Sequence[MediaItem], start: int, num_tokens: int, budget: int) -> int:
    """The number of tokens from `start` on that a grant can have if it cuts no span.

    It ends before a span that would be cut. If that leaves no token, it covers the span: these are
    more than `num_tokens`, and none if they are more than `budget`.
    """
    end = before_span(items, start + num_tokens)
    assert end >= start, "a grant would begin inside a span"
    if end == start:
        end = next(item.end for item in items if item.start == start)
    return end - start if end - start <= budget else 0
