"""The members that providers may have: each is declared once, with the value for one that lacks it.

The rows in kinds.py name the members of their providers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Member(Generic[T]):
    """A member that an object may have."""

    name: str
    default: T
    """Its value for an object that lacks it."""

    def of(self, provider: object) -> T:
        """The provider's own value, or the default."""
        value: T = getattr(provider, self.name, self.default)
        return value


def _nothing(argument: object) -> None:
    pass


IS_DETERMINISTIC = Member("is_deterministic", True)
"""False: it may decide by chance, so the conformance suite does not compare two runs."""
DECODES_ALL = Member("decodes_all", False)
"""True: when no request waits and all running requests decode, a scheduler schedules each of them
in order, and its state does not change. Then a simulation computes many such steps at once."""
PREPARE: Member[Callable[[Any], None]] = Member("prepare", _nothing)
"""prepare(support) of a speculative method: see Speculator in contract/providers/speculation.py."""
NEEDS_HIDDEN_STATES = Member("needs_hidden_states", False)
"""True: a speculative method gets the model's hidden states. Read after `prepare`."""
PROPOSES = Member("proposes", True)
"""False: a speculative method is never called."""
PARSES = Member("parses", True)
"""False: a parser is never called."""
DESCRIBES_TOOLS = Member("describes_tools", False)
"""True: the calls of a tool call parser are those of no family. Functions and earlier calls are
described to the model in messages, in `call_syntax`, whatever the chat template shows. Such a
parser also reads demanded calls if the chosen one has no `call_syntax`."""
CALL_ID_LENGTH: Member[int | None] = Member("call_id_length", None)
"""The length of a call's id that the chat template of a tool call parser's models demands."""
MEDIA_SAMPLE: Member[Any] = Member("media_sample", None)
"""A MediaSample: a model that a media processor fits, for the conformance suite."""
WRITE_SAMPLE: Member[Callable[..., Any] | None] = Member("write_sample", None)
"""Writes a small sample for the conformance suite: write_sample(folder) of a model implementation
writes a model, write_sample(weights) of a weight format returns a QuantizedSample."""
FRAME_IMAGES: Member[Callable[[str], str]] = Member("frame_images", str)
"""frame_images(text) of a tokenizer: the text of a prompt with images, with what the model's own
processor writes around the text that shows an image."""
TAKE_MEDIA: Member[Callable[[Any], None]] = Member("take_media", _nothing)
"""take_media(items) of an executor whose model reads images: see interfaces.TakesMedia."""
