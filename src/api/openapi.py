"""The OpenAPI 3.1 document of the HTTP API, generated from routes, bodies and answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from ..version import __version__
from .anthropic.answers import Message, TokenCount
from .anthropic.bodies import CountTokensBody, MessagesBody
from .http import anthropic_errors
from .http.anthropic_errors import AnthropicErrorBody
from .http.errors import ErrorBody
from .http.keys.auth import ADMIN_PATHS, PUBLIC_PATHS
from .openai.reading.bodies import (
    ChatBody,
    ChatMessageBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from .openai.reading.embeddings import EmbeddingsBody
from .openai.responses import (
    ChatResponse,
    CompletionResponse,
    DetokenizeResponse,
    EmbeddingsResponse,
    ModelCard,
    ModelList,
    TokenizeResponse,
    TokenizerInfoResponse,
)
from .responses.answers import ResponseObject
from .responses.bodies import ResponsesBody
from .serving.context import ServerSettings
from .serving.reading.fields import StreamOptions
from .serving.reading.unknown_fields import Unsupported, unsupported_fields

_BODIES: dict[str, type] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/embeddings": EmbeddingsBody,
    "/v1/responses": ResponsesBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": CountTokensBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
_ANSWERS: dict[str, type] = {
    "/v1/completions": CompletionResponse,
    "/v1/chat/completions": ChatResponse,
    "/v1/embeddings": EmbeddingsResponse,
    "/v1/responses": ResponseObject,
    "/v1/messages": Message,
    "/v1/messages/count_tokens": TokenCount,
    "/tokenize": TokenizeResponse,
    "/detokenize": DetokenizeResponse,
    "/tokenizer_info": TokenizerInfoResponse,
    "/v1/models": ModelList,
    "/v1/models/{name}": ModelCard,
}
_STREAMED = {"/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"}
"""Paths whose answers may also be server-sent events."""
_GENERATING = {*_STREAMED, "/v1/embeddings"}
"""Paths whose requests the engine computes."""
_TEXT = {"/", "/metrics"}
_QUESTION = "What is the capital of Japan?"
_MESSAGES = [{"role": "user", "content": _QUESTION}]
_EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": _MESSAGES, "temperature": 0.2, "max_tokens": 64},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": 32},
    "/v1/responses": {"input": _QUESTION, "max_output_tokens": 64},
    "/v1/messages": {"messages": _MESSAGES, "max_tokens": 64},
    "/v1/messages/count_tokens": {"messages": _MESSAGES},
    "/v1/embeddings": {"input": ["Tokyo", "Kyoto"]},
    "/tokenize": {"prompt": _QUESTION},
    "/detokenize": {"tokens": [1, 2, 3]},
}
"""Bodies that work as they are, with the model's name. Pages that send requests start with them:
without an example, they fill in every field."""
_TAGS = ("Answers", "Models and tokens", "Server")
"""Groups of paths, in their order on pages; see `_tag`."""
_STATUSES = {
    400: "the request is not valid",
    401: "the API key is missing or wrong",
    403: "the Host header names another machine, or the key is not the admin key",
    404: "there is no such model",
    408: "the body came too slowly",
    413: "the body is too large",
    415: "the body is not sent as JSON",
    429: "the sender has reached a limit",
    500: "the server failed to answer",
    503: "the server cannot answer now",
    504: "the request took too long",
}
_STRICT = (*_BODIES.values(), ChatMessageBody, StreamOptions)
"""Types whose unknown fields --strict-fields refuses."""
_NEED_MODEL = (CompletionBody, ChatBody, EmbeddingsBody, ResponsesBody)
"""Bodies that must name a model under --strict-fields."""
_EVENT = {
    "type": "object",
    "description": "One event. Its data is JSON; the last one of completions and chats is [DONE].",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_REFERENCES = "#/components/schemas/{name}"


def openapi_document(
    routes: Iterable[BaseRoute], settings: ServerSettings, model: str
) -> dict[str, Any]:
    """The OpenAPI document: every path with its request body, its answer and its error.

    `model` is the model's name in examples.
    """
    kinds = [*_BODIES.values(), *_ANSWERS.values(), ErrorBody, AnthropicErrorBody]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCES)
    schema_of = dict(zip(kinds, schemas, strict=True))
    _add_unsupported(components)
    if settings.strict_fields:
        _make_strict(components)
    shown = (route for route in routes if isinstance(route, Route) and route.include_in_schema)
    paths = dict(_path(route, schema_of, settings, model) for route in shown)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "tokenmill", "version": __version__},
        "tags": [{"name": name} for name in _TAGS],
        "paths": paths,
        "components": {"schemas": components},
    }
    if settings.root_path:
        document["servers"] = [{"url": settings.root_path}]
    if settings.needs_key or settings.admin_key is not None:
        _add_keys(document, settings)
    return document


def _add_keys(document: dict[str, Any], settings: ServerSettings) -> None:
    """Say which paths need a key."""
    schemes = {
        "key": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    document["components"]["securitySchemes"] = schemes
    document["security"] = [{name: []} for name in schemes]
    for path, operations in document["paths"].items():
        if not _needs_key(path, settings):
            for operation in operations.values():
                operation["security"] = []


def _needs_key(path: str, settings: ServerSettings) -> bool:
    return path.startswith(ADMIN_PATHS) or (settings.needs_key and path not in PUBLIC_PATHS)


def _add_unsupported(components: dict[str, Any]) -> None:
    """Add the fields that only neutral values may have, with these values."""
    for kind in _BODIES.values():
        schemas = {name: _neutral_schema(f) for name, f in unsupported_fields(kind).items()}
        components[kind.__name__]["properties"] |= schemas


def _neutral_schema(field: Unsupported) -> dict[str, Any]:
    return {"enum": [None, *field.neutral], "description": f"Not supported: {field.reason}."}


def _make_strict(components: dict[str, Any]) -> None:
    for kind in _STRICT:
        components[kind.__name__]["additionalProperties"] = False
    for kind in _NEED_MODEL:
        schema = components[kind.__name__]
        schema["required"] = ["model", *schema["required"]]
        properties = schema["properties"]
        properties["model"] = next(
            found for found in properties["model"]["anyOf"] if found["type"] != "null"
        )


def _path(
    route: Route, schema_of: dict[type, Any], settings: ServerSettings, model: str
) -> tuple[str, dict[str, Any]]:
    path = route.path.replace("{name:path}", "{name}")
    error = {"content": _content(schema_of[_error_kind(path)])}
    found = _statuses(path, settings)
    errors = {str(status): error | {"description": text} for status, text in found}
    operation: dict[str, Any] = {
        "tags": [_tag(path)],
        "summary": " ".join((route.endpoint.__doc__ or "").partition("\n\n")[0].split()),
        "responses": {"200": _answer(path, schema_of)} | errors,
    }
    if path in _BODIES:
        content = _content(schema_of[_BODIES[path]])
        content["application/json"]["example"] = {"model": model} | _EXAMPLES[path]
        operation["requestBody"] = {"required": True, "content": content}
    if "{name}" in path:
        operation["parameters"] = [
            {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    methods = sorted(method.lower() for method in (route.methods or ()) if method != "HEAD")
    return path, dict.fromkeys(methods, operation)


def _tag(path: str) -> str:
    answers, models_and_tokens, server = _TAGS
    if path in _BODIES and path.startswith("/v1/"):
        return answers
    return models_and_tokens if path in _ANSWERS else server


def _answer(path: str, schema_of: dict[type, Any]) -> dict[str, Any]:
    content = _content(schema_of[_ANSWERS[path]]) if path in _ANSWERS else {}
    if path in _STREAMED:
        content["text/event-stream"] = {"schema": _EVENT}
    if path in _TEXT:
        content["text/plain"] = {"schema": {"type": "string"}}
    return {"description": "answer"} | ({"content": content} if content else {})


def _error_kind(path: str) -> type:
    return AnthropicErrorBody if path.endswith(anthropic_errors.PATHS) else ErrorBody


def _statuses(path: str, settings: ServerSettings) -> Iterator[tuple[int, str]]:
    """The errors that a path may answer with, and what they mean."""
    is_public = path in PUBLIC_PATHS
    conditions = {
        401: _needs_key(path, settings),
        403: (settings.is_local and not settings.needs_key) or path.startswith(ADMIN_PATHS),
        404: path in _BODIES or "{name}" in path,
        429: path in _GENERATING,
        500: True,
        503: path in _BODIES or is_public,
        504: path in _GENERATING,
    }
    for status, text in _STATUSES.items():
        if conditions.get(status, path in _BODIES):
            yield status, text


def _content(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"application/json": {"schema": schema}}
