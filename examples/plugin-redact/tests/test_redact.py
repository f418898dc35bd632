"""The conformance kit, and the addresses of a request."""

import pytest
from tokenmill_redact.redact import Redact

from tokenmill.plugin import RequestOptions, RequestText
from tokenmill.testing import PackageConformance, TransformConformance


class TestRedact(TransformConformance):
    @pytest.fixture
    def transform(self) -> type[Redact]:
        return Redact


class TestPackage(PackageConformance):
    @pytest.fixture
    def plugin_name(self) -> str:
        return "redact"


def test_addresses_are_replaced_and_restored() -> None:
    texts = [RequestText(text="a@b.org, c@d.org, a@b.org")]
    done = Redact().begin(texts, RequestOptions())
    assert done.texts == ["[email-1], [email-2], [email-1]"]
    assert done.answer is not None
    answer = done.answer()
    pieces = [answer.feed(piece) for piece in ("To [em", "ail-2", "] or [email-9] [")]
    assert [*pieces, answer.finish()] == ["To ", "", "c@d.org or [email-9] ", "["]
