"""What comes with a request besides its prompt and its SamplingParams, validated where it enters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from .errors import InvalidRequestError
from .read_only_dict import ReadOnlyDict
from .suggest import did_you_mean

MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY = 64
"""Characters. This limit, the one above and the one below are those of OpenAI's `metadata`."""
MAX_METADATA_VALUE = 512
MAX_CLIENT_ID = 256
"""Characters of an id that a client chose."""
MAX_ID = 2 * MAX_CLIENT_ID
"""Characters of `request_id`: a client's id, with what a server puts around it."""
MAX_USER = 512
MAX_CACHE_SALT = 128
MAX_INTEGER = 2**31


NO_METADATA: Mapping[str, str] = ReadOnlyDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Who asks, and how the request is to be treated. Raises InvalidRequestError, whose `param` is
    the field's name."""

    request_id: str | None = None
    """The id that the answer, the logs and plugins show; while a live request has it, this one gets
    a suffix. None: the engine makes one."""
    client_request_id: str | None = None
    """What the client itself calls the request, unchanged."""
    prompt_index: int = 0
    """Place of the prompt in a call with several; these share their `request_id`."""
    priority: int = 0
    """Lower goes first."""
    user: str | None = None
    """The end user, as the client names it."""
    api_key_id: str | None = None
    """Stands for the API key that the request came with; never the key itself."""
    cache_salt: str | None = None
    """Only requests with the same salt share KV blocks."""
    metadata: Mapping[str, str] = NO_METADATA
    """What else policies and observers may want to know, for example the tenant."""

    def __post_init__(self) -> None:
        for name, (low, high) in _LENGTHS.items():
            _check_text(name, getattr(self, name), low, high)
        _check_integer("prompt_index", self.prompt_index, 0, MAX_INTEGER)
        _check_integer("priority", self.priority, -MAX_INTEGER, MAX_INTEGER)
        object.__setattr__(self, "metadata", _checked_metadata(self.metadata))

    def with_changes(self, **changes: Any) -> Self:
        """A validated copy with some fields changed; an unknown one is an error that names near
        ones."""
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
}
"""Fewest and most characters of each text."""


def _check_text(name: str, value: object, low: int, high: int) -> None:
    if value is not None and not (isinstance(value, str) and low <= len(value) <= high):
        raise _invalid(name, f"must be a text of {low} to {high} characters, {_seen(value)}")


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _invalid(name, f"must be an integer in [{low}, {high}], got {value!r}")


def _checked_metadata(given: object) -> Mapping[str, str]:
    if not isinstance(given, Mapping):
        raise _invalid("metadata", f"must map texts to texts, got {type(given).__name__}")
    if len(given) > MAX_METADATA_PAIRS:
        raise _invalid("metadata", f"takes at most {MAX_METADATA_PAIRS} pairs, got {len(given)}")
    for key, value in given.items():
        if not isinstance(key, str) or not 0 < len(key) <= MAX_METADATA_KEY:
            raise _invalid(
                "metadata", f"takes keys of 1 to {MAX_METADATA_KEY} characters, {_seen(key)}"
            )
        if not isinstance(value, str) or len(value) > MAX_METADATA_VALUE:
            raise _invalid(
                "metadata",
                f"takes texts of at most {MAX_METADATA_VALUE} characters, {_seen(value)} "
                f"for {key!r}",
            )
    return ReadOnlyDict(given)


def _seen(value: object) -> str:
    return f"got {len(value)}" if isinstance(value, str) else f"got {type(value).__name__}"


def _invalid(param: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param} {what}", param=param)
