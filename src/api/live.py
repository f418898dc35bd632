"""The live page, and what it shows: the activity of all engines."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..core.contract.activity import Activity, LiveRequest
from ..version import __version__
from .http.errors import APIError
from .http.keys.auth import key_holder
from .http.live_page import FILES
from .serving.context import AppContext, ServerSettings, context_of

_FORWARDED = ("forwarded", "via", "x-real-ip")
"""Headers that proxies add."""
_SALT = secrets.token_bytes(8)
PLACEHOLDER_DIGITS = 6
MAX_DIGITS = 18


async def activity(request: Request) -> Response:
    """The activity of the engines: live requests, the last steps, and the state of each KV block.

    The admin key shows everything. Without one, clients on this machine see it with placeholders
    for ids and keys, unless clients need an API key.
    """
    context = context_of(request)
    is_admin = _is_admin(request, context)
    after = request.query_params.get("after", "-1")
    if not after.removeprefix("-").isdecimal() or len(after) > MAX_DIGITS:
        raise APIError(400, f"after must be the number of a step, got {after!r}", param="after")
    found = await context.engine.activity(int(after))
    engines = found if is_admin else tuple(_redacted(one) for one in found)
    answer = {
        "version": __version__,
        "model": context.engine.model_name,
        "is_redacted": not is_admin,
        "load": context.engine.load(),
        "engines": engines,
    }
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _is_admin(request: Request, context: AppContext) -> bool:
    """Whether the administrator asks. Raises APIError (403) for those who may see nothing."""
    holder = key_holder(request.scope)
    if holder is not None and holder.is_admin:
        return True
    if context.settings.needs_key or not _is_near(request, context.settings):
        raise APIError(403, "this path needs the admin key", code="admin_key_required")
    return False


def _is_near(request: Request, settings: ServerSettings) -> bool:
    """Whether the client is on this machine, as far as can be known: proxies may hide others."""
    if settings.root_path or settings.allowed_hosts or not settings.is_local:
        return False
    if request.scope["http_version"] == "1.0" or request.client is None:  # nginx; a Unix socket
        return False
    if any(name in _FORWARDED or name.startswith("x-forwarded-") for name in request.headers):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _redacted(one: Activity) -> Activity:
    steps = [replace(step, preempted=_placeholders(step.preempted)) for step in one.steps]
    return replace(one, requests=tuple(map(_without_names, one.requests)), steps=tuple(steps))


def _without_names(request: LiveRequest) -> LiveRequest:
    return replace(request, request_id=_placeholder(request.request_id), api_key_id=None)


def _placeholders(ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(_placeholder, ids))


def _placeholder(request_id: str) -> str:
    """The same for the same id until the next start."""
    digest = hashlib.blake2b(request_id.encode(), key=_SALT).hexdigest()
    return f"request {digest[:PLACEHOLDER_DIGITS]}"


ROUTES = (
    Route("/live", FILES.page, include_in_schema=False),
    Route("/live/activity", activity, include_in_schema=False),
    Route("/live/{path:path}", FILES.file, include_in_schema=False),
)
"""Not part of the OpenAPI document: it describes what programs ask for."""
