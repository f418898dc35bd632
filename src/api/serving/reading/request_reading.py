"""Reads and validates request bodies, with limits on size and time, and errors that name fields."""

from __future__ import annotations

import asyncio
import codecs
import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import ParamSpec, TypeVar

import anyio.to_thread
import msgspec
from starlette.requests import ClientDisconnect, Request

from ....core.wording import value_errors
from ...http.body_budget import Account
from ...http.errors import APIError
from ...http.ignored_fields import name_ignored
from ..context import context_of
from .body_sizes import SMALL_BYTES, check_sizes, check_unknown
from .unknown_fields import UnknownField, decode_fields, refuse_unknown, unknown_fields

BODY_SECONDS = 10.0
"""Maximum time for a client to send its body."""
JSON = "application/json"
_BYTE = re.compile(r"\(byte (\d+)\)")
Body = TypeVar("Body")
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The decoded body. The names of ignored fields go into the answer's header.

    Raises APIError: 415 if it is not sent as JSON, 400 if it is not valid, 408 if it is too slow,
    413 if it is too large, and 503 if the bodies of all clients together are.
    """
    _check_media_type(request)
    context = context_of(request)
    with context.bodies.account() as account:
        raw = await _read_bytes(request, context.max_body_bytes, account)
        request.state.has_large_body = len(raw) > SMALL_BYTES
        decode = _decode_large if request.state.has_large_body else _decode
        body, unknown = await compute(request, decode, raw, kind)
    if context.settings.strict_fields:
        refuse_unknown(unknown)
    name_ignored(request.scope, [field.path for field in unknown])
    return body


async def compute(
    request: Request,
    function: Callable[Arguments, Result],
    *args: Arguments.args,
    **options: Arguments.kwargs,
) -> Result:
    """The function's answer about a body: of a large one on another thread, so that the event loop
    works for other requests meanwhile."""
    if not request.state.has_large_body:
        return function(*args, **options)
    return await anyio.to_thread.run_sync(partial(function, *args, **options))


def _check_media_type(request: Request) -> None:
    """A web page may send other types to a server of another origin without being allowed to."""
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != JSON:
        raise APIError(415, f"send the body with the header Content-Type: {JSON}")


def _decode_large(raw: bytearray, kind: type[Body]) -> tuple[Body, list[UnknownField]]:
    """Decode on another thread. Each call into msgspec holds Python's lock, so each is short: what
    would take long is refused before."""
    with _explained(kind):
        check_unknown(raw, kind)
    return _decode(raw, kind)


def _decode(raw: bytearray, kind: type[Body]) -> tuple[Body, list[UnknownField]]:
    if not raw:
        raise APIError(400, "the body is empty: send a JSON object")
    with _explained(kind), _no_garbage_collection():
        given = decode_fields(raw)
        check_sizes(given, kind)
        return msgspec.json.decode(raw, type=kind), unknown_fields(given, kind)


@contextmanager
def _explained(kind: type) -> Iterator[None]:
    """Raise APIError (400) for what is not valid."""
    try:
        yield
    except msgspec.ValidationError as error:
        param, text = value_errors.explain_value(error, kind)
        raise APIError(400, text, param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _explain_syntax(error) from error
    except RecursionError as error:
        raise APIError(400, "the body is nested too deeply") from error


def _explain_syntax(error: Exception) -> APIError:
    """The error for a body that is not JSON."""
    if isinstance(error, UnicodeDecodeError):
        return APIError(400, "the body is not valid UTF-8")
    place = _BYTE.search(str(error))
    why = (
        f"the first error is at byte {place.group(1)}"
        if place
        else "it ends too early, or has half of a surrogate pair"
    )
    return APIError(400, f"the body is not valid JSON: {why}")


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Decoding makes no cycles. A million small lists would start 1,900 collections: seconds."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def _read_bytes(request: Request, max_bytes: int, account: Account) -> bytearray:
    too_large = APIError(413, f"the body is larger than {max_bytes} bytes (--max-body-bytes)")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    received = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                account.take(len(chunk))
                received += chunk
                if len(received) > max_bytes:
                    raise too_large
    except TimeoutError as error:
        raise APIError(408, f"the body did not arrive within {BODY_SECONDS:g} seconds") from error
    except ClientDisconnect as error:
        raise APIError(400, "the client disconnected") from error
    if received.startswith(codecs.BOM_UTF8):  # as some editors and PowerShell write files
        del received[: len(codecs.BOM_UTF8)]
    return received
