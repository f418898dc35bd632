"""--root-path: the prefix under which a proxy shows the server."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class StripRootPath:
    """ASGI middleware that removes the prefix from paths that have it.

    So it works behind proxies that remove the prefix and behind proxies that keep it. The code
    behind it, such as the check of API keys, sees the path that the router matches.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        """`root_path` begins with "/" and does not end with it."""
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path == self._root_path or path.startswith(f"{self._root_path}/"):
            scope["path"] = path[len(self._root_path) :] or "/"
        await self._app(scope, receive, send)
