"""Reads and validates request bodies, with limits on size and time, and errors that name fields."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ..http.errors import APIError
from .bodies import ChatBody, CompletionBody, SamplingFields

BODY_SECONDS = 10.0
"""Maximum time for a client to send its body."""
NO_TOOLS = "this server does not support tool calls yet"
Body = TypeVar("Body")

_FIELD = re.compile(r"`\$\.?(\w+)")
_UNKNOWN = re.compile(r"unknown field `(.+?)`", re.DOTALL)
_MISSING = re.compile(r"missing required field `(.+?)`")
_LONGEST_NAME = 64
"""Maximum number of characters of an unknown field's name that an error repeats."""


async def read_body(request: Request, kind: type[Body], max_bytes: int) -> Body:
    """The decoded body.

    Raises APIError: 400 if it is not valid, 408 if it is too slow, 413 if it is too large.
    """
    raw = await _read_bytes(request, max_bytes)
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise APIError(400, f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise APIError(400, "the body is nested too deeply") from error


async def _read_bytes(request: Request, max_bytes: int) -> bytes:
    too_large = APIError(413, f"the body is larger than {max_bytes} bytes (--max-body-bytes)")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    received = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                received += chunk
                if len(received) > max_bytes:
                    raise too_large
    except TimeoutError as error:
        raise APIError(408, f"the body did not arrive within {BODY_SECONDS:g} seconds") from error
    except ClientDisconnect as error:
        raise APIError(400, "the client disconnected") from error
    return bytes(received)


def _explain(message: str) -> APIError:
    unknown = _UNKNOWN.search(message)
    if unknown:
        name = unknown.group(1)[:_LONGEST_NAME]
        return APIError(400, f"unknown field {name!r}", param=name)
    found = _FIELD.search(message) or _MISSING.search(message)
    return APIError(400, message.replace("`", "'"), param=found.group(1) if found else None)


def refuse_unsupported(body: SamplingFields) -> None:
    """Raise APIError (400) for a field that asks for an unsupported feature.

    Values that change nothing pass.
    """
    if body.best_of not in (None, 1) and body.best_of != body.n:
        raise _unsupported("best_of", "use n")
    if body.response_format is not None and body.response_format.type != "text":
        raise _unsupported("response_format", "use {'type': 'text'}")
    if body.service_tier not in (None, "auto", "default"):
        raise _unsupported("service_tier", "use 'auto' or 'default'")
    if body.store:
        raise _unsupported("store", "this server stores no answers")
    options = body.stream_options
    if options is not None and not body.stream:
        raise APIError(400, "stream_options needs stream: true", param="stream_options")
    if options is not None and options.include_obfuscation:
        raise _unsupported("stream_options.include_obfuscation", "leave it out")
    if isinstance(body, CompletionBody):
        _refuse_in_completions(body)
    elif isinstance(body, ChatBody):
        _refuse_in_chat(body)


def _refuse_in_completions(body: CompletionBody) -> None:
    if body.suffix:
        raise _unsupported("suffix", "this model does not fill in the middle")
    if body.echo and body.logprobs is not None:
        raise _unsupported("echo", "log-probabilities of the prompt are not computed")


def _refuse_in_chat(body: ChatBody) -> None:
    for name in ("tools", "functions"):
        if getattr(body, name):
            raise _unsupported(name, NO_TOOLS)
    if body.tool_choice not in (None, "none", "auto"):
        raise _unsupported("tool_choice", NO_TOOLS)
    for name in ("audio", "moderation", "prediction", "web_search_options"):
        if getattr(body, name) is not None:
            raise _unsupported(name, "leave it out")
    if body.function_call not in (None, "none", "auto"):
        raise _unsupported("function_call", NO_TOOLS)
    if body.verbosity not in (None, "medium"):
        raise _unsupported("verbosity", "ask for it in the messages")
    if body.modalities not in (None, ["text"]):
        raise _unsupported("modalities", "use ['text']")
    if body.top_logprobs and not body.logprobs:
        raise APIError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise APIError(
            400,
            "max_tokens and max_completion_tokens mean the same and differ; give one of them",
            param="max_completion_tokens",
        )


def _unsupported(param: str, advice: str) -> APIError:
    return APIError(400, f"{param} is not supported: {advice}", param=param, code="unsupported")
