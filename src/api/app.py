"""The Starlette application that serves one engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields, replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from ..core.config import EngineConfig
from ..core.contract.client import EngineClient
from ..core.errors import ConfigError, TokenmillError
from ..core.wording.suggest import near_and_known
from . import live, operations
from .anthropic.messages import count_tokens, create_message
from .http.answer_headers import AddHeaders
from .http.docs_page import route as docs_page
from .http.errors import ABSENT_PATHS, ERROR_SHAPES, APIError, handle_error
from .http.host_check import CheckHost
from .http.keys.auth import ADMIN_PATHS, RequireKey
from .http.keys.ring import KeyRing
from .http.request_id import TrackRequests
from .http.root_path import StripRootPath
from .openai.chat import create_chat_completion
from .openai.completions import create_completion
from .openai.embeddings import create_embeddings
from .parsing.chosen_parsers import build_answer_parsers
from .parsing.parser_guards import ParserGuards
from .plugin_routes.building import PluginRoutes, build_routes
from .responses.route import create_response
from .serving.context import AppContext, ServerSettings
from .tracing import profiling

ROUTES = (
    Route("/", operations.index),
    Route("/health", operations.health),
    Route("/ready", operations.ready),
    Route("/ping", operations.health, methods=["GET", "POST"]),
    Route("/load", operations.load),
    Route("/version", operations.version),
    Route("/metrics", operations.metrics),
    Route("/plugins", operations.plugins),
    Route("/openapi.json", operations.openapi),
    Route("/tokenize", operations.tokenize, methods=["POST"]),
    Route("/detokenize", operations.detokenize, methods=["POST"]),
    Route("/tokenizer_info", operations.tokenizer_info),
    Route("/v1/models", operations.models),
    Route("/v1/models/{name:path}", operations.model),
    Route("/v1/chat/completions", create_chat_completion, methods=["POST"]),
    Route("/v1/completions", create_completion, methods=["POST"]),
    Route("/v1/embeddings", create_embeddings, methods=["POST"]),
    Route("/v1/responses", create_response, methods=["POST"]),
    Route("/v1/messages", create_message, methods=["POST"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
)


ADMIN_ROUTES = (
    Route("/debug/state", operations.debug_state),
    Route("/debug/requests", operations.slowest_requests),
    Route("/debug/requests/{name:path}", operations.explain_request),
    Route("/debug/trace", profiling.trace),
    Route("/debug/trace", profiling.begin_trace, methods=["POST"]),
    Route("/reset_prefix_cache", operations.reset_prefix_cache, methods=["POST"]),
    Route("/start_profile", profiling.start_profile, methods=["POST"]),
    Route("/stop_profile", profiling.stop_profile, methods=["POST"]),
)
"""Routes that change or reveal the server's inside. They exist only with an admin key."""
PAGES = (*docs_page.ROUTES, *live.ROUTES)


def create_app(
    engine: EngineClient,
    settings: ServerSettings | None = None,
    keys: KeyRing | None = None,
    routes: PluginRoutes | None = None,
    **options: Any,
) -> Starlette:
    """An ASGI app with the server's HTTP API, for your own server or to mount in another app.

    The app's lifespan starts the engine and closes it, unless the engine is started: then its owner
    closes it. An app that mounts this one must run its lifespan, because Starlette and FastAPI do
    not run those of mounted apps: `FastAPI(lifespan=app.router.lifespan_context)`.

    `options` are fields of ServerSettings, and change `settings`:
    `create_app(engine, api_keys=["secret"])`. `keys`: the result of `make_key_ring` for the
    settings, if the program reloads the key file. `routes`: those of plugins, if the program has
    built them before it starts the engine.

    Raises ConfigError for an unknown option, an empty key and a key file that cannot be used, and
    PluginError if parsers of answers or routes of plugins cannot be built. With an engine that is
    not started, the lifespan raises PluginError, and what `engine.start` raises.
    """
    settings = _changed(settings or ServerSettings(), options)
    keys = keys or make_key_ring(settings)
    routes = routes or plugin_routes(engine.config)
    guards = routes.guards
    app: Starlette = Starlette(
        routes=[
            *ROUTES,
            *(ADMIN_ROUTES if keys.has_admin else ()),
            *(PAGES if settings.ui else ()),
            *routes.routes,
        ],
        middleware=_middleware(settings, keys),
        exception_handlers={
            APIError: handle_error,
            TokenmillError: handle_error,
            HTTPException: handle_error,
            Exception: handle_error,
        },
        lifespan=lambda _: _lifespan(app, engine, settings, guards),  # it may get another app
    )
    setattr(app.state, ERROR_SHAPES, routes.error_shapes)
    setattr(app.state, ABSENT_PATHS, _absent_paths(settings, keys))
    app.router.redirect_slashes = False  # a redirect's address would come from the Host header
    if engine.is_started:
        _open(app, engine, settings, guards)
    return app


def _absent_paths(settings: ServerSettings, keys: KeyRing) -> dict[str, str]:
    admin = {} if keys.has_admin else dict.fromkeys(ADMIN_PATHS, "the server has no --admin-key")
    pages = {} if settings.ui else dict.fromkeys(("/docs", "/live"), "the server runs with --no-ui")
    return admin | pages


def plugin_routes(config: EngineConfig) -> PluginRoutes:
    """The routes of the enabled plugins. Raises PluginError if one of them cannot be added."""
    return build_routes(config, (*ROUTES, *ADMIN_ROUTES, *PAGES))


def _open(
    app: Starlette, engine: EngineClient, settings: ServerSettings, guards: ParserGuards
) -> None:
    parsers = build_answer_parsers(engine.config, engine.tokenizer.chat_format, guards)
    app.state.context = AppContext(engine=engine, settings=settings, parsers=parsers)


@asynccontextmanager
async def _lifespan(
    app: Starlette, engine: EngineClient, settings: ServerSettings, guards: ParserGuards
) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        if not engine.is_started:
            stack.push_async_callback(engine.close)
            await engine.start()
        _open(app, engine, settings, guards)
        yield


def _middleware(settings: ServerSettings, keys: KeyRing) -> list[Middleware]:
    """From the outermost to the innermost."""
    found = [
        Middleware(TrackRequests, logs=settings.log_requests),
        Middleware(AddHeaders, always=_timing_headers(settings)),
    ]
    if settings.root_path:
        found.insert(0, Middleware(StripRootPath, root_path=settings.root_path))
    if settings.is_local and not settings.needs_key:
        found.append(Middleware(CheckHost, allowed=settings.allowed_hosts))
    if settings.allowed_origins:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.allowed_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["Server-Timing", "X-Request-Id"],
            )
        )
    if keys.has_admin or keys.has_tenants:
        found.append(Middleware(RequireKey, keys=keys))
    return found


def _changed(settings: ServerSettings, options: Mapping[str, Any]) -> ServerSettings:
    known = [field.name for field in fields(settings)]
    for name in options:
        if name not in known:
            raise ConfigError(f"unknown option {name!r}{near_and_known(name, known)}")
    return replace(settings, **options)


def _timing_headers(settings: ServerSettings) -> dict[str, str]:
    """Let pages of the allowed origins read the Server-Timing of their requests."""
    origins = ", ".join(filter(str.isascii, settings.allowed_origins))  # browsers send no others
    return {"timing-allow-origin": origins} if origins else {}


def make_key_ring(settings: ServerSettings) -> KeyRing:
    """The keys that the settings name. Raises ConfigError for a key file that cannot be used."""
    return KeyRing(
        settings.api_keys,
        secret=settings.api_key_secret,
        file=settings.api_key_file,
        admin_key=settings.admin_key,
    )
