"""The contract of transforms, which change the texts of requests and of their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...requests.request_options import RequestOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestText:
    """One text of a request."""

    text: str
    role: str | None = None
    """The role of the message that has the text; None: the text is a prompt."""


class AnswerTransform(Protocol):
    """Changes one part of an answer: a run of content or of reasoning, or the arguments of a call.

    Several parts are changed at the same time if a request has several choices.
    """

    def feed(self, text: str) -> str:
        """The text that is certain because of this next piece of the part. It may be empty: text
        may be held back. The result must not depend on how the text is cut into pieces."""
        ...

    def finish(self) -> str:
        """The rest of the part: no more text comes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed:
    """The changed texts of a request, one for each that was given, in the same order."""

    texts: Sequence[str]
    answer: Callable[[], AnswerTransform] | None = None
    """Called for every part of the answer; None: the answer stays as it is."""


class Transform(Protocol):
    """Changes requests and their answers in the server's process, on its event loop.

    One transform changes all requests, several at a time: it keeps the state of a request in the
    `answer` that it returns. No method may block. An exception fails the request with status 500.
    """

    def begin(self, texts: Sequence[RequestText], options: RequestOptions) -> Transformed:
        """Change the texts of a request before its admission.

        `texts` are those of all messages or prompts. Raise InvalidRequestError, with `param`, to
        refuse the request with status 400.
        """
        ...
