"""The OpenAPI 3.1 document of the HTTP API, generated from routes, bodies and answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from .. import __version__
from .http.auth import PUBLIC_PATHS
from .http.errors import ErrorBody
from .openai.context import ServerSettings
from .openai.reading.bodies import (
    ChatBody,
    ChatMessageBody,
    CompletionBody,
    DetokenizeBody,
    StreamOptions,
    TokenizeBody,
)
from .openai.reading.unsupported import UNSUPPORTED, Unsupported
from .openai.responses import (
    ChatResponse,
    CompletionResponse,
    DetokenizeResponse,
    ModelCard,
    ModelList,
    TokenizeResponse,
)

_BODIES: dict[str, type] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
_ANSWERS: dict[str, type] = {
    "/v1/completions": CompletionResponse,
    "/v1/chat/completions": ChatResponse,
    "/tokenize": TokenizeResponse,
    "/detokenize": DetokenizeResponse,
    "/v1/models": ModelList,
    "/v1/models/{name}": ModelCard,
}
_STRICT = (*_BODIES.values(), ChatMessageBody, StreamOptions)
"""Types whose unknown fields --strict-fields refuses."""
_NEED_MODEL = (CompletionBody, ChatBody)
"""Bodies that must name a model under --strict-fields."""
_REFERENCES = "#/components/schemas/{name}"


def openapi_document(routes: Iterable[BaseRoute], settings: ServerSettings) -> dict[str, Any]:
    """The OpenAPI document: every path with its request body, its answer and its error."""
    kinds = [*_BODIES.values(), *_ANSWERS.values(), ErrorBody]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCES)
    schema_of = dict(zip(kinds, schemas, strict=True))
    _add_unsupported(components)
    if settings.strict_fields:
        _make_strict(components)
    paths = dict(_path(route, schema_of) for route in routes if isinstance(route, Route))
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "tokenmill", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }
    return _with_keys(document) if settings.api_keys else document


def _with_keys(document: dict[str, Any]) -> dict[str, Any]:
    """The document of a server with API keys."""
    schemes = {"key": {"type": "http", "scheme": "bearer"}}
    for path in PUBLIC_PATHS & document["paths"].keys():
        for operation in document["paths"][path].values():
            operation["security"] = []
    return document | {
        "components": document["components"] | {"securitySchemes": schemes},
        "security": [{"key": []}],
    }


def _add_unsupported(components: dict[str, Any]) -> None:
    """Add the fields that only neutral values may have, with these values."""
    for kind, fields in UNSUPPORTED.items():
        schemas = {name: _neutral_schema(field) for name, field in fields.items()}
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


def _path(route: Route, schema_of: dict[type, Any]) -> tuple[str, dict[str, Any]]:
    path = route.path.replace("{name:path}", "{name}")
    operation: dict[str, Any] = {
        "summary": (route.endpoint.__doc__ or "").partition("\n")[0],
        "responses": {
            "200": {"description": "answer"},
            "default": {"description": "error", "content": _content(schema_of[ErrorBody])},
        },
    }
    if path in _ANSWERS:
        operation["responses"]["200"]["content"] = _content(schema_of[_ANSWERS[path]])
    if path in _BODIES:
        operation["requestBody"] = {"required": True, "content": _content(schema_of[_BODIES[path]])}
    if "{name}" in path:
        operation["parameters"] = [
            {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    methods = sorted(method.lower() for method in (route.methods or ()) if method != "HEAD")
    return path, dict.fromkeys(methods, operation)


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
