"""The contract of routes: HTTP handlers behind the server's keys, limits, ids and metrics."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from ...interfaces import ChatFormat, ModelInfo
from ...requests.grammar import Grammar
from ..parsing.answers import Delta

_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model that the server serves."""

    names: Sequence[str]
    """All names that requests may have. Answers have the first one."""
    info: ModelInfo
    max_model_len: int
    """Maximum number of tokens of a request: prompt and output together."""
    chat_format: ChatFormat | None
    """The chat template; None: the model has none, and takes no chats."""
    finds_tool_calls: bool
    """Whether chats may have tools."""
    finds_reasoning: bool
    """Whether answers may have reasoning apart from their content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChat:
    """A chat that a handler wants answered."""

    model: str | None
    """None: the served model."""
    messages: Sequence[Mapping[str, Any]]
    """In the shape of OpenAI's chat completions. The server adds ids of tool calls where they are
    missing, and takes arguments as JSON text or as objects."""
    tools: Sequence[Mapping[str, Any]] = ()
    """In the same shape."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of SamplingParams by name. None counts as not given: the model's default holds."""
    grammar: Grammar | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the chat template, for example `{"enable_thinking": False}`."""
    continue_final_message: bool = False
    """The answer continues the last message."""
    is_streamed: bool
    """False: the deltas come together, when the answer is complete, which costs less."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The route's names of fields, by those of SamplingParams and of chat completions. Errors for
    the client use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEnd:
    """The end of an answer."""

    reason: Literal["stop", "length", "tool_calls"]
    num_prompt_tokens: int
    num_tokens: int
    """Generated tokens."""
    prompt_seconds: float
    """From the arrival to the first token."""
    answer_seconds: float
    """From the first token to the last one."""
    total_seconds: float
    """From the arrival to the end."""


class ChatAnswer(Protocol):
    """The answer to a chat."""

    def __aiter__(self) -> AsyncIterator[Delta]:
        """The deltas, in the order of the text. Iterate once."""
        ...

    @property
    def end(self) -> ChatEnd:
        """The end, after all deltas."""
        ...


class RouteCall(Protocol):
    """One HTTP request, as its handler sees it. Use it in the server's event loop only."""

    @property
    def model(self) -> ServedModel: ...

    def name_ignored(self, fields: Sequence[str]) -> None:
        """Add fields of the body that have no effect to the header that names them. Use it before
        the answer begins. Unknown fields of the body's type are already in there."""
        ...

    async def chat(self, chat: RouteChat) -> ChatAnswer:
        """Admit a chat, and return its answer.

        It passes through transforms and admission, and counts for the limits of the sender's key.
        If the client leaves or the handler ends, it is aborted. Let its exceptions pass: the server
        makes them errors for the client.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteAnswer:
    """A whole answer."""

    body: object
    """Bytes, or a value that is sent as JSON."""
    status: int = 200
    media_type: str = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteStream:
    """An answer that is sent piece by piece. If it fails, `error` of the routes and a line end are
    its last piece, because status 200 has been sent before."""

    pieces: AsyncIterator[object]
    """Bytes, or values that are sent as lines of JSON."""
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path of the server."""

    path: str
    """Without parameters, such as "/api/chat". It must not be a path of the server's own."""
    handle: Callable[[RouteCall, Any], Awaitable[RouteAnswer | RouteStream]]
    """Answers one request, of which there are several at a time; its second argument is the body.
    It must not block. An exception fails the request with status 500, InvalidRequestError with 400.
    """
    body: type[Any] | None = None
    """The type of the JSON body, a msgspec.Struct; the method is POST. None: the route has no body,
    and its method is GET."""
    example: Mapping[str, Any] | None = None
    """A body that works, with which the conformance kit calls the route."""


class Routes(Protocol):
    """Some paths of the server, in one format."""

    @property
    def routes(self) -> Sequence[Route]: ...

    def error(self, status: int, message: str) -> object:
        """The body of an error on these paths, found by the handler or by the server: bytes, or
        a value that is sent as JSON. The server also calls it for paths that do not exist, in a
        folder in which only this plugin has routes: "/api/pull" beside "/api/chat"."""
        ...


def reason_against(route: object) -> str | None:
    """Why no server can have this route; None: it can be added."""
    if not isinstance(route, Route):
        return f"'routes' must have Routes, got {route!r:.100}"
    path, body = route.path, route.body
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        return (
            f"the path {path!r:.100} of a route must be parts of letters, digits and ._~- after "
            'slashes, such as "/api/chat"'
        )
    if not callable(route.handle):
        return f"the handler of {path} must be a function, got {route.handle!r:.100}"
    if body is not None and not (isinstance(body, type) and issubclass(body, msgspec.Struct)):
        return f"the body of {path} must be a class of msgspec.Struct, got {body!r:.100}"
    return None
