"""Errors as HTTP answers: {"error": {"message", "type", "param", "code"}}, OpenAI's shape.

The routes of Anthropic's API have another shape, see anthropic_errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
from starlette._utils import get_route_path
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from ...core.errors import (
    NAME_MARK,
    EngineStoppedError,
    InvalidRequestError,
    OverloadedError,
    RateLimitedError,
    RequestFailedError,
)
from ...core.log import get_logger
from . import anthropic_errors
from .logs.request_log import CLIENT_LEFT, answer_stats
from .request_id import request_id_of

log = get_logger("api")

SERVER_ERROR = "the server failed to answer this request; its log says why"
_TYPES = {401: "authentication_error", 429: "rate_limit_error", 503: "service_unavailable_error"}


class APIError(Exception):
    """An HTTP error answer. Any code below a route may raise it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.template = message
        self.message = message.replace(NAME_MARK, "")
        super().__init__(self.message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.headers = headers or {}


_INDEX = re.compile(r"\[\d+\]")


@contextmanager
def own_names(names: Mapping[str, str]) -> Iterator[None]:
    """Let errors for the client use an API's names of fields.

    `names`: by the names of chat completions and of sampling parameters. A name may be a path of
    fields, with "[]" for any index. Of several that fit, the first counts.
    """
    try:
        yield
    except (APIError, InvalidRequestError) as error:
        if error.param is not None:
            error.param = _own(error.param, names)
        parts = error.template.split(NAME_MARK)
        text = "".join(_own(part, names) if n % 2 else part for n, part in enumerate(parts))
        error.args = (text,)
        if isinstance(error, APIError):
            error.message = text
        raise


def _own(path: str, names: Mapping[str, str]) -> str:
    """The API's path of a field, or of a part of it."""
    plain = _INDEX.sub("[]", path)
    for name, own in names.items():
        if plain == name or plain.startswith((f"{name}.", f"{name}[")):
            return own + plain[len(name) :]
    return path


ErrorShape = Callable[[APIError], bytes]
ERROR_SHAPES = "error_shapes"
"""An attribute of the app's state: the error shapes of plugins' paths, by path or folder."""
ABSENT_PATHS = "absent_paths"
"""The same for paths that this server lacks because of its settings: why, by their beginnings."""


class ErrorDetail(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


_FIELDS = {"extra_args": "vllm_xargs"}
"""Fields of bodies, by the parameters of the library that have another name."""


def as_api_error(error: Exception) -> APIError:
    """The HTTP error for an exception.

    An unexpected exception is logged, and its answer shows no details.
    """
    match error:
        case APIError():
            return error
        case InvalidRequestError():
            param = _FIELDS.get(error.param or "", error.param)
            return APIError(400, str(error), param=param, code=error.code)
        case RateLimitedError():
            return APIError(
                429, str(error), code="rate_limit_exceeded", retry_after=error.retry_after
            )
        case OverloadedError():
            return APIError(503, str(error), code="overloaded", retry_after=error.retry_after)
        case EngineStoppedError():
            return shutting_down(error.message)
        case RequestFailedError():
            return APIError(500, str(error), code="request_failed")
        case HTTPException():
            return APIError(error.status_code, error.detail, headers=error.headers)
        case _:
            log.error("request_crashed", exc_info=error)
            return APIError(500, SERVER_ERROR)


def shutting_down(message: str) -> APIError:
    """The error of every route while the server shuts down, or after its engine has stopped."""
    return APIError(503, message, code="stopped", retry_after=5.0)


def error_detail(error: APIError) -> ErrorDetail:
    """The error in OpenAI's shape."""
    default = "invalid_request_error" if error.status < 500 else "server_error"
    return ErrorDetail(
        message=error.message,
        type=_TYPES.get(error.status, default),
        param=error.param,
        code=error.code,
    )


def error_body(error: APIError) -> bytes:
    return msgspec.json.encode(ErrorBody(error_detail(error)))


def error_response(error: APIError, scope: Scope | None = None) -> Response:
    """The error as an HTTP answer, in the shape of the API that the request's path belongs to.

    `scope`: the request's, if one could be read.
    """
    headers = dict(error.headers)
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = _body_for(scope, error) if scope is not None else error_body(error)
    return Response(body, error.status, headers=headers, media_type="application/json")


def _body_for(scope: Scope, error: APIError) -> bytes:
    path, shapes = get_route_path(scope), getattr(scope["app"].state, ERROR_SHAPES, {})
    folders = (place for place in shapes if place.endswith("/") and path.startswith(place))
    place = path if path in shapes else max(folders, key=len, default=None)
    if place is not None:
        shape: ErrorShape = shapes[place]
        return shape(error)
    if path.endswith(anthropic_errors.PATHS):
        return anthropic_errors.anthropic_error_body(
            error.status, error.message, request_id_of(scope)
        )
    return error_body(error)


def _why_missing(request: Request) -> str:
    path, absent = get_route_path(request.scope), getattr(request.app.state, ABSENT_PATHS, {})
    folder = request.scope.get("root_path", "")  # of the app that mounts this one
    hints = (why for place, why in absent.items() if path.startswith(place))
    hint = next(hints, f"GET {folder}/ lists all paths")
    return f"there is no {request.method} {request.scope['path']} here; {hint}"


async def handle_error(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for all errors. It would call a plain function in a thread."""
    found = as_api_error(error)
    if found.status == 404 and isinstance(error, HTTPException):
        found = APIError(404, _why_missing(request))
    if found.status == 405:
        text = f"{request.scope['path']} does not accept {request.method}"
        found = APIError(405, text, headers=found.headers)
    if found.status != CLIENT_LEFT:  # the connection knows why
        answer_stats(request.scope).error = found.message
    return error_response(found, request.scope)
