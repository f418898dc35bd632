"""Requests to the OpenAI-compatible API of a server."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

from .....core.errors import TokenmillError

CONNECT_SECONDS = 10.0
"""A server that has not sent its list of models after this time does not answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the API."""

    status: int
    lines: Generator[bytes, None, None]
    """Its body. To close it is to leave the request."""


class Transport(Protocol):
    """Sends requests to one API."""

    @property
    def place(self) -> str:
        """The address of the API, for errors."""
        ...

    def send(self, path: str, body: bytes | None = None) -> Reply:
        """POST a body, or GET without one. Raises TokenmillError if nobody answers."""
        ...


class HTTPTransport:
    """Sends requests to the server at `url`, which ends with the API's version, such as /v1."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.place = url
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def send(self, path: str, body: bytes | None = None) -> Reply:
        # An answer has no limit: the prompt of a long conversation may take minutes.
        timeout = CONNECT_SECONDS if body is None else None
        request = urllib.request.Request(f"{self.place}{path}", body, self._headers)
        try:
            answer = urllib.request.urlopen(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            return Reply(error.code, self._lines(error))
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise TokenmillError(f"no server answers at {self.place}: {reason}") from error
        return Reply(answer.status, self._lines(answer))

    def _lines(self, answer: Any) -> Generator[bytes, None, None]:
        try:
            with answer:
                yield from answer
        except (OSError, http.client.HTTPException) as error:
            raise TokenmillError(f"the connection to {self.place} is lost: {error}") from error
