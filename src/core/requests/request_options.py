"""Options of a request apart from its prompt and SamplingParams, validated when they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from ..errors import InvalidRequestError
from ..wording.suggest import did_you_mean
from .checked_once import checked_once
from .read_only_collections import ReadOnlyDict

MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY = 64
"""Characters. The three limits on metadata are those of OpenAI's `metadata`."""
MAX_METADATA_VALUE = 512
"""Characters."""
MAX_CLIENT_ID = 256
"""Characters of an id that a client chooses."""
MAX_ID = 2 * MAX_CLIENT_ID
"""Characters of `request_id`: a client's id with the prefix and suffix of the server."""
MAX_USER = 512
"""Characters."""
MAX_CACHE_SALT = 128
"""Characters."""
MAX_INTEGER = 2**31


NO_METADATA: Mapping[str, str] = ReadOnlyDict()


@checked_once("metadata", "trace_headers")
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Identity of a request's sender, and options such as its priority.

    Raises InvalidRequestError, whose `param` is the name of the invalid field.
    """

    request_id: str | None = None
    """The id in the answer, in logs and for plugins. If a live request has the same id, this one
    gets a suffix. None: the engine makes an id."""
    client_request_id: str | None = None
    """The client's own id, unchanged: the header X-Request-Id, or `request_id` in the body."""
    prompt_index: int = 0
    """Index of the prompt in its call. All prompts of a call share their `request_id`."""
    priority: int = 0
    """Requests with a lower number go first."""
    user: str | None = None
    """The end user that the client names in the body's `user`. It is not verified."""
    api_key_id: str | None = None
    """The name of the request's API key, or a keyed hash of it; never the key itself."""
    has_key_limits: bool = False
    """Whether the server applies limits of the API key. If so, plugins leave such limits to it."""
    cache_salt: str | None = None
    """Only requests with the same salt share KV blocks. It may be a secret: do not log it."""
    request_timeout: float | None = None
    """Seconds from its arrival after which the request ends with the tokens that it has. A smaller
    --request-timeout of the engine ends it before."""
    session_id: str | None = None
    """The same for all requests of one conversation or user. Routers use it."""
    metadata: Mapping[str, str] = NO_METADATA
    """Further facts for policies and observers, for example the tenant: at most 16 pairs, from the
    body's `metadata`, from headers that the operator allows, or from the embedding program."""
    trace_headers: Mapping[str, str] = NO_METADATA
    """W3C's headers traceparent and tracestate, of the trace that the request belongs to."""

    def _check(self) -> None:
        for name, (low, high) in _LENGTHS.items():
            _check_text(name, getattr(self, name), low, high)
        _check_integer("prompt_index", self.prompt_index, 0, MAX_INTEGER)
        _check_integer("priority", self.priority, -MAX_INTEGER, MAX_INTEGER)
        _check_seconds("request_timeout", self.request_timeout)
        for name in ("metadata", "trace_headers"):
            object.__setattr__(self, name, _checked_pairs(name, getattr(self, name)))

    def with_changes(self, **changes: Any) -> Self:
        """A validated copy with some fields changed.

        Raises InvalidRequestError for an unknown field; the message suggests a similar one.
        """
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                near = did_you_mean(name, known)
                raise InvalidRequestError(f"unknown request option {name!r}{near}", param=name)
        return replace(self, **changes) if changes else self


_LENGTHS = {
    "request_id": (1, MAX_ID),
    "client_request_id": (1, MAX_CLIENT_ID),
    "user": (0, MAX_USER),
    "api_key_id": (1, MAX_CLIENT_ID),
    "cache_salt": (1, MAX_CACHE_SALT),
    "session_id": (0, MAX_USER),
}
"""Minimum and maximum number of characters of each text."""


def _check_text(name: str, value: object, low: int, high: int) -> None:
    if value is not None and not (isinstance(value, str) and low <= len(value) <= high):
        raise _invalid(name, f"must be a text of {low} to {high} characters, {_seen(value)}")


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _invalid(name, f"must be an integer in [{low}, {high}], got {value!r}")


def _check_seconds(name: str, value: object) -> None:
    if value is None:
        return
    text = f"must be a number of seconds in (0, {MAX_INTEGER}], got {value!r}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(name, text)
    if not 0 < value <= MAX_INTEGER:
        raise _invalid(name, text)


def _checked_pairs(name: str, given: object) -> Mapping[str, str]:
    if not isinstance(given, Mapping):
        raise _invalid(name, f"must map texts to texts, got {type(given).__name__}")
    if not given:
        return NO_METADATA
    if len(given) > MAX_METADATA_PAIRS:
        raise _invalid(name, f"takes at most {MAX_METADATA_PAIRS} pairs, got {len(given)}")
    for key, value in given.items():
        if not isinstance(key, str) or not 0 < len(key) <= MAX_METADATA_KEY:
            raise _invalid(name, f"takes keys of 1 to {MAX_METADATA_KEY} characters, {_seen(key)}")
        if not isinstance(value, str) or len(value) > MAX_METADATA_VALUE:
            raise _invalid(
                name,
                f"takes texts of at most {MAX_METADATA_VALUE} characters, {_seen(value)} "
                f"for {key!r}",
            )
    return ReadOnlyDict(given)


def _seen(value: object) -> str:
    return f"got {len(value)}" if isinstance(value, str) else f"got {type(value).__name__}"


def _invalid(param: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param} {what}", param=param)


NO_OPTIONS = RequestOptions()
