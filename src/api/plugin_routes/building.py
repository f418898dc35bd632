"""Builds the routes of the enabled plugins, and checks that they hide none of the server's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.routing import Route as HTTPRoute

from ...core.config import EngineConfig
from ...core.contract.plugin_info import Source
from ...core.contract.providers.http_routes import reason_against
from ...core.contract.registry import Provider
from ...core.contract.start_calls import START_CALLS
from ...core.errors import CONTAINED, PluginError, describe
from ...core.host.calling.guard import ADMITS
from ...core.host.plugin_set import enabled_plugins
from ...core.kinds import ROUTE
from ..http.errors import ErrorShape
from ..http.keys.auth import ADMIN_PATHS
from ..parsing.parser_guards import ParserGuards
from .handling import GuardedRoute, error_shape, handle


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRoutes:
    """The routes that plugins add to a server."""

    routes: Sequence[HTTPRoute]
    error_shapes: Mapping[str, ErrorShape]
    """By path, and by folder, such as "/api/", for the paths in it that do not exist."""
    guards: ParserGuards
    """Count the calls of the handlers."""


def build_routes(config: EngineConfig, own: Sequence[HTTPRoute]) -> PluginRoutes:
    """The routes of all enabled plugins. `own`: all routes that the server may have itself.

    Raises PluginError with a one-line message.
    """
    plugins, guards = enabled_plugins(config), ParserGuards()
    for name in config.named(ROUTE.name):
        plugins.find(ROUTE.name, name)
    sources: dict[str, Source] = {}
    routes: list[HTTPRoute] = []
    shapes: dict[str, ErrorShape] = {}
    for provider, built in plugins.build_all(ROUTE.name):
        error = guards.add(built.error, provider.source, ROUTE.name, ADMITS)
        shape = partial(error_shape, error)
        for route in _routes_of(provider, built):
            _check(route, provider.source, own)
            if (other := sources.get(route.path)) == provider.source:
                raise PluginError(f"{other} has the route {route.path} twice")
            if other is not None:
                both = f"{other} and {provider.source}"
                raise PluginError(f"{both} both have the route {route.path}; disable one of them")
            sources[route.path] = provider.source
            handler = guards.add(route.handle, provider.source, ROUTE.name, ADMITS)
            guarded = GuardedRoute(
                route=route, handler=handler, error=error, id_prefix=provider.name
            )
            routes.append(_http_route(guarded))
            shapes[route.path] = shape
    return PluginRoutes(
        routes=routes, error_shapes=_of_folders(shapes, own) | shapes, guards=guards
    )


def _of_folders(
    shapes: Mapping[str, ErrorShape], own: Iterable[HTTPRoute]
) -> dict[str, ErrorShape]:
    """By folder, if one plugin has all routes in it."""
    found: dict[str, set[ErrorShape]] = {}
    for path, shape in shapes.items():
        found.setdefault(path[: path.rindex("/") + 1], set()).add(shape)
    servers = {route.path for route in own}
    return {
        folder: shape
        for folder, (shape, *others) in found.items()
        if not others and not any(path.startswith(folder) for path in servers)
    }


def _http_route(served: GuardedRoute) -> HTTPRoute:
    method = "GET" if served.route.body is None else "POST"
    endpoint = partial(handle, served)
    return HTTPRoute(served.route.path, endpoint, methods=[method], include_in_schema=False)


def _routes_of(provider: Provider, built: Any) -> tuple[Any, ...]:
    what = f"in 'routes' of {provider.name!r} of"
    try:
        found: tuple[Any, ...] = START_CALLS.call(
            what, provider.source, lambda: tuple(built.routes)
        )
    except CONTAINED as error:
        raise PluginError(f"{provider.source} failed in 'routes': {describe(error)}") from error
    return found


def _check(route: Any, source: Source, own: Iterable[HTTPRoute]) -> None:
    """Raise PluginError for a route that cannot work, or that hides one of the server's own."""
    if reason := reason_against(route):
        raise PluginError(f"{source}: {reason}")
    path = route.path
    if path.startswith(ADMIN_PATHS) or any(one.path_regex.match(path) for one in own):
        raise PluginError(f"{source} has the route {path}, which is a path of the server's own")
