"""Reads recorded workloads: a JSON document with a list of requests, or one object per line."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..core.errors import ConfigError
from .workload import PlannedRequest, random_tokens

ALIASES = {
    "prompt_len": "num_prompt_tokens",
    "num_output_tokens": "max_tokens",
    "output_len": "max_tokens",
}
"""Other names of fields that recordings use."""
_TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
_Count = Annotated[int, Meta(ge=1, le=2**24)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """The fields of one request in a workload file; every other field is ignored.

    A prompt is given by its token ids or by its length. With a length only, it is random, and its
    first `num_prefix_tokens` tokens are the same for all requests with the same `prefix`.
    """

    prompt_token_ids: tuple[_TokenId, ...] | None = None
    num_prompt_tokens: _Count | None = None
    max_tokens: _Count
    at: Annotated[float, Meta(ge=0)] | None = None
    """Arrival time in seconds. Either all requests have it, or none."""
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] = 0
    prefix: str | None = None
    num_prefix_tokens: Annotated[int, Meta(ge=0)] = 0
    cache_salt: str | None = None
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWorkload:
    """The content of a workload file."""

    requests: tuple[PlannedRequest, ...]
    """In order of arrival; all at 0 if the file has no arrival times."""
    has_arrivals: bool
    """Whether the file has arrival times."""
    ignored_fields: tuple[str, ...]
    """Fields that the planner does not use, for example a recording's texts."""


def read_workload(path: Path, seed: int = 0) -> RecordedWorkload:
    """Read a recorded workload. `seed` determines the prompts that are given by their length.

    Raises ConfigError that names the file, the line or request, and the field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"workload {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"workload {path} is not UTF-8 text: {error}") from error
    found = [(where, *_parse(value, where)) for where, value in _entries(text, path)]
    if not found:
        raise ConfigError(f"workload {path} has no requests")
    has_arrivals = _check_arrivals([(where, request) for where, request, _ in found])
    begin = min(request.at or 0.0 for _, request, _ in found)
    planned = [
        _plan(request, begin, random.Random(f"{seed} {number}"), seed)
        for number, (_, request, _) in enumerate(found)
    ]
    return RecordedWorkload(
        requests=tuple(sorted(planned, key=lambda request: request.at)),
        has_arrivals=has_arrivals,
        ignored_fields=tuple(sorted({name for *_, names in found for name in names})),
    )


def _entries(text: str, path: Path) -> Iterator[tuple[str, object]]:
    """Yield the location of each request in the file, and its value."""
    if _is_json_lines(text):
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield f"{path}, line {number}", _load(line, f"{path}, line {number}")
        return
    document = _load(text, str(path))
    requests = document.get("requests") if isinstance(document, dict) else document
    if not isinstance(requests, list):
        raise ConfigError(
            f"workload {path}: expected a list of requests, an object with such a list as "
            '"requests", or one request per line'
        )
    for index, value in enumerate(requests):
        yield f"{path}, requests[{index}]", value


def _is_json_lines(text: str) -> bool:
    """Whether the first line is a whole request."""
    try:
        first = json.loads(text.lstrip().partition("\n")[0])
    except ValueError:
        return False
    return isinstance(first, dict) and "requests" not in first


def _load(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = "" if ", line " in where else f", line {error.lineno}"
        raise ConfigError(f"{where}{line}, column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: nested too deeply") from error


def _parse(value: object, where: str) -> tuple[RecordedRequest, list[str]]:
    """The request, and the names of its ignored fields."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected an object, got {json.dumps(value)[:40]}")
    named = _rename(value, where)
    try:
        request = msgspec.convert(named, RecordedRequest)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {str(error).replace('`$.', '`')}") from error
    _check_prompt(request, where)
    known = RecordedRequest.__dataclass_fields__
    return request, [name for name in named if name not in known]


def _rename(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Replace aliases of fields. Raises ConfigError if a field and its alias differ."""
    named: dict[str, Any] = {}
    for key, content in value.items():
        name = ALIASES.get(key, key)
        if name in named and named[name] != content:
            raise ConfigError(f"{where}: two values for {name} ({named[name]} and {content})")
        named[name] = content
    return named


def _check_prompt(request: RecordedRequest, where: str) -> None:
    ids, length = request.prompt_token_ids, request.num_prompt_tokens
    if ids is None and length is None:
        raise ConfigError(f"{where}: prompt_token_ids or num_prompt_tokens is missing")
    if ids is not None:
        if not ids:
            raise ConfigError(f"{where}: prompt_token_ids is empty")
        if length is not None and length != len(ids):
            raise ConfigError(
                f"{where}: num_prompt_tokens is {length}, but prompt_token_ids has {len(ids)}"
            )
        if request.prefix is not None or request.num_prefix_tokens:
            raise ConfigError(f"{where}: prefix has no effect with prompt_token_ids: remove one")
        return
    if (request.prefix is None) != (request.num_prefix_tokens == 0):
        raise ConfigError(f"{where}: prefix and num_prefix_tokens must be given together")
    if length is not None and request.num_prefix_tokens > length:
        raise ConfigError(
            f"{where}: num_prefix_tokens is {request.num_prefix_tokens}, but num_prompt_tokens is "
            f"{length}"
        )


def _check_arrivals(found: list[tuple[str, RecordedRequest]]) -> bool:
    has_arrivals = found[0][1].at is not None
    for where, request in found:
        if (request.at is not None) != has_arrivals:
            raise ConfigError(f"{where}: `at` must be in every request or in none")
    return has_arrivals


def _plan(request: RecordedRequest, begin: float, rng: random.Random, seed: int) -> PlannedRequest:
    ids = request.prompt_token_ids
    if ids is None:
        assert request.num_prompt_tokens is not None
        # The generator depends on the prefix's name only, so requests with that name share it.
        prefix = random_tokens(
            random.Random(f"{seed} prefix {request.prefix}"), request.num_prefix_tokens
        )
        ids = prefix + random_tokens(rng, request.num_prompt_tokens - len(prefix))
    return PlannedRequest(
        at=(request.at or 0.0) - begin,
        prompt_token_ids=ids,
        max_tokens=request.max_tokens,
        priority=request.priority,
        cache_salt=request.cache_salt,
        session_id=request.session_id,
    )
