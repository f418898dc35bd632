"""The OpenAPI 3.1 document of the HTTP API, generated from routes, bodies and answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from .. import __version__
from .http.errors import ErrorBody
from .openai.bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
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
_REFERENCES = "#/components/schemas/{name}"


def openapi_document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """The OpenAPI document: every path with its request body, its answer and its error."""
    kinds = [*_BODIES.values(), *_ANSWERS.values(), ErrorBody]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCES)
    schema_of = dict(zip(kinds, schemas, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {"title": "tokenmill", "version": __version__},
        "paths": dict(_path(route, schema_of) for route in routes if isinstance(route, Route)),
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


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
