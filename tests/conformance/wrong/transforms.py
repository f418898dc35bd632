"""Wrong transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tokenmill.plugin import Transformed
from tokenmill.testing import TransformConformance


class Shout:
    """Right: an answer in capital letters."""

    def feed(self, text: str) -> str:
        return text.upper()

    def finish(self) -> str:
        return ""


class Right:
    def begin(self, texts: Sequence[Any], options: Any) -> Transformed:
        return Transformed(texts=[one.text for one in texts], answer=Shout)


class DropsEmptyTexts(Right):
    def begin(self, texts: Sequence[Any], options: Any) -> Transformed:
        return Transformed(texts=[one.text for one in texts if one.text])


class LooksAtPieces(Shout):
    def feed(self, text: str) -> str:
        return text.capitalize()


class ChangesByPiece(Right):
    def begin(self, texts: Sequence[Any], options: Any) -> Transformed:
        return Transformed(texts=[one.text for one in texts], answer=LooksAtPieces)


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


class TestDropsEmptyTexts(TransformConformance):
    fails = "test_it_returns_one_text_for_each"

    @pytest.fixture
    def transform(self) -> object:
        return DropsEmptyTexts


class TestChangesByPiece(TransformConformance):
    fails = "test_cuts_change_nothing"

    @pytest.fixture
    def transform(self) -> object:
        return ChangesByPiece


class TestKeepsTheLastRequest(TransformConformance):
    fails = "test_requests_do_not_disturb_each_other"

    @pytest.fixture
    def transform(self) -> object:
        return KeepsTheLastRequest
