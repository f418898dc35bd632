"""The routes of /docs: a page that shows the OpenAPI document and fetches nothing from elsewhere.

The page is the same on every server, so it needs no API key. The document needs one where other
paths do; the page then asks for it.
"""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

_FILES = StaticFiles(directory=Path(__file__).parent / "static")
HEADERS = {
    # Swagger UI sets style attributes, and has its icons in data: addresses.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # browsers keep the files, and ask whether they have changed
}


async def page(request: Request) -> Response:
    """A page for people that shows the OpenAPI document, and sends requests."""
    return await _file("page.html", request)


async def file(request: Request) -> Response:
    """A script or style of the page."""
    return await _file(request.path_params["path"], request)


async def _file(path: str, request: Request) -> Response:
    response = await _FILES.get_response(path, request.scope)
    response.headers.update(HEADERS)
    return response


ROUTES = (
    Route("/docs", page, include_in_schema=False),
    Route("/docs/{path:path}", file, include_in_schema=False),
)
"""Not part of the document: it describes what programs ask for."""
