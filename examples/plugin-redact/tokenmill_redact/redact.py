"""Replaces e-mail addresses in requests, and restores them in answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from tokenmill.plugin import RequestOptions, RequestText, Transformed

_ADDRESS = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")
_MARK = re.compile(r"\[email-\d{1,6}\]")
_BEGUN = re.compile(r"\[(?:e(?:m(?:a(?:i(?:l(?:-\d{0,6})?)?)?)?)?)?\Z")
"""The beginning of a mark at the end of a text."""


class Redact:
    """One object for all requests: the addresses of a request are in its answers' `_Restore`."""

    def begin(self, texts: Sequence[RequestText], options: RequestOptions) -> Transformed:
        marks: dict[str, str] = {}

        def mark(found: re.Match[str]) -> str:
            return marks.setdefault(found[0], f"[email-{len(marks) + 1}]")

        changed = [_ADDRESS.sub(mark, one.text) for one in texts]
        addresses = {mark: address for address, mark in marks.items()}
        return Transformed(
            texts=changed, answer=partial(_Restore, addresses) if addresses else None
        )


class _Restore:
    """Holds text back while it may be the beginning of a mark."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        begun = _BEGUN.search(text)
        end = begun.start() if begun else len(text)
        self._held = text[end:]
        return _MARK.sub(lambda found: self._addresses.get(found[0], found[0]), text[:end])

    def finish(self) -> str:
        return self._held
