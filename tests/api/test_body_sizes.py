"""The values of a field are counted exactly, whatever is escaped in them."""

from __future__ import annotations

import msgspec
import pytest

from tokenmill.api.http.errors import APIError
from tokenmill.api.openai.reading.bodies import CompletionBody
from tokenmill.api.serving.reading.body_sizes import MAX_OBJECTS, MAX_STRINGS, check_sizes


def check(piece: str, number: int) -> None:
    raw = f"[{','.join([piece] * number)}]".encode()
    check_sizes({"prompt": msgspec.Raw(raw)}, CompletionBody)


@pytest.mark.parametrize(
    ("piece", "most", "what"),
    [
        ('"a"', MAX_STRINGS, "strings"),
        (r'"\\"', MAX_STRINGS, "strings"),
        (r'"\\\""', MAX_STRINGS, "strings"),
        (r'"[[\"[[\\"', MAX_STRINGS, "strings"),
        ("[]", MAX_OBJECTS - 1, "objects and lists"),
    ],
)
def test_as_many_as_allowed_pass_and_one_more_is_refused(piece: str, most: int, what: str) -> None:
    check(piece, most)
    with pytest.raises(APIError, match=f"at most .* {what}"):
        check(piece, most + 1)
