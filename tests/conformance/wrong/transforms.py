"""Wrong transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenmill.plugin import Transformed
from tokenmill.testing.conformance import transforms as suite

from . import fails


class Shout:
    """Right: an answer in capital letters."""

    def feed(self, text: str) -> str:
        return text.upper()

    def finish(self) -> str:
        return ""


class Right:
    def begin(self, texts: Sequence[Any], options: Any) -> Transformed:
        return Transformed(texts=[one.text for one in texts], answer=Shout)


@fails(suite.check_it_returns_one_text_for_each)
class DropsEmptyTexts(Right):
    def begin(self, texts: Sequence[Any], options: Any) -> Transformed:
        return Transformed(texts=[one.text for one in texts if one.text])


class LooksAtPieces(Shout):
    def feed(self, text: str) -> str:
        return text.capitalize()


@fails(suite.check_cuts_change_nothing)
class ChangesByPiece(Right):
    def begin(self, texts: Sequence[Any], options: Any) -> Transformed:
        return Transformed(texts=[one.text for one in texts], answer=LooksAtPieces)


@fails(suite.check_requests_do_not_disturb_each_other)
class KeepsTheLastRequest(Right):
    """The state of a request is in the transform."""

    def begin(self, texts: Sequence[Any], options: Any) -> Transformed:
        self.last = "".join(one.text for one in texts)
        return Transformed(texts=[one.text for one in texts], answer=lambda: Ends(self.last))


class Ends(Shout):
    def __init__(self, text: str) -> None:
        self.text = text

    def finish(self) -> str:
        return self.text
