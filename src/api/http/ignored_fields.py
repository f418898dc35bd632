"""A header of answers that names the fields of the request's body that the server ignored."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from starlette.types import Scope

from ...core.wording.suggest import listed
from .answer_headers import add_header

HEADER = "x-tokenmill-ignored-fields"
_STATE = "ignored_fields"
_LONGEST_NAME = 64
"""Characters of a name that the header repeats."""
_IN_HEADERS = "[]._-$"
"""Characters of names that need no percent encoding, in addition to letters and digits."""


def name_ignored(scope: Scope, names: Sequence[str]) -> None:
    """Add these fields to the answer's header. It has the first eight and the number of others."""
    found: list[str] = scope.setdefault("state", {}).setdefault(_STATE, [])
    found += [quote(name[:_LONGEST_NAME], safe=_IN_HEADERS, errors="replace") for name in names]
    if found:
        add_header(scope, HEADER, listed(found))
