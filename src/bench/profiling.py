"""The profile that a server makes while it is measured, with vLLM's routes."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from ..core.errors import TokenmillError
from .client import Server, ServerError


@dataclass(slots=True, kw_only=True)
class Profile:
    """Starts a server's profile when it is entered, and stops it when it is left.

    Raises TokenmillError if it cannot be started.
    """

    server: Server
    admin_key: str | None
    """The key of both routes; None: the key of all other requests."""
    answer: bytes = b""
    """The answer to the stop: tokenmill's trace. Other servers keep their profile themselves."""
    error: str = ""
    """The reason why it could not be stopped. What was measured is worth more."""

    async def __aenter__(self) -> None:
        try:
            await self._post("/start_profile")
        except ServerError as error:
            raise TokenmillError(f"--profile: {_explain(error)}") from error

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.answer = await self._post("/stop_profile")
        except ServerError as failure:
            self.error = _explain(failure)

    async def _post(self, path: str) -> bytes:
        key = self.admin_key
        return await self.server.post_empty(
            path, {} if key is None else {"Authorization": f"Bearer {key}"}
        )


def _explain(error: ServerError) -> str:
    if error.status == 404 and "step log" not in str(error):
        return "the server has no profile: start tokenmill with --admin-key, vLLM with a profiler"
    if error.status in (401, 403):
        return f"{error}; give the server's admin key with --admin-key or TOKENMILL_ADMIN_KEY"
    return str(error)
