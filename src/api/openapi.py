"""The OpenAPI 3.1 document of the HTTP surface."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from .. import __version__
from .bodies import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from .errors import ErrorBody
from .responses import (
    ChatResponse,
    CompletionResponse,
    DetokenizeResponse,
    ModelList,
    TokenizeResponse,
)

_POSTS: dict[str, tuple[type, type]] = {
    "/v1/completions": (CompletionBody, CompletionResponse),
    "/v1/chat/completions": (ChatBody, ChatResponse),
    "/tokenize": (TokenizeBody, TokenizeResponse),
    "/detokenize": (DetokenizeBody, DetokenizeResponse),
}
_REFERENCES = "#/components/schemas/{name}"


@cache
def openapi_document() -> dict[str, Any]:
    """Paths with their request and response schemas, and the error that each may answer."""
    kinds = [kind for pair in _POSTS.values() for kind in pair] + [ModelList, ErrorBody]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCES)
    schema_of = dict(zip(kinds, schemas, strict=True))
    failure = {"description": "error", "content": _content(schema_of[ErrorBody])}
    paths: dict[str, Any] = {
        path: {
            "post": {
                "requestBody": {"required": True, "content": _content(schema_of[body])},
                "responses": {
                    "200": {"description": "answer", "content": _content(schema_of[answer])},
                    "default": failure,
                },
            }
        }
        for path, (body, answer) in _POSTS.items()
    }
    paths["/v1/models"] = {
        "get": {
            "responses": {
                "200": {"description": "answer", "content": _content(schema_of[ModelList])},
                "default": failure,
            }
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "tokenmill", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
