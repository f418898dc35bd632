"""Files of pages that the server brings itself. They fetch nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # browsers keep the files, and ask whether they have changed
}
"""Pages set style attributes, and have their icons in data: addresses."""


class PageFiles:
    """The files of one page, in the folder `static` of a module's package."""

    def __init__(self, module: str) -> None:
        """`module`: its `__file__`."""
        self._files = StaticFiles(directory=Path(module).parent / "static")

    async def page(self, request: Request) -> Response:
        return await self._get("page.html", request)

    async def file(self, request: Request) -> Response:
        return await self._get(request.path_params["path"], request)

    async def _get(self, path: str, request: Request) -> Response:
        response = await self._files.get_response(path, request.scope)
        response.headers.update(HEADERS)
        return response
