"""The routes of /docs: a page that shows the OpenAPI document.

The page is the same on every server, so it needs no API key. The document needs one where other
paths do; the page then asks for it.
"""

from __future__ import annotations

from starlette.routing import Route

from ..static_files import PageFiles

_FILES = PageFiles(__file__)

ROUTES = (
    Route("/docs", _FILES.page, include_in_schema=False),
    Route("/docs/{path:path}", _FILES.file, include_in_schema=False),
)
"""Not part of the document: it describes what programs ask for."""
