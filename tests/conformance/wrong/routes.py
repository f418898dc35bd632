"""Wrong routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from tokenmill.plugin import (
    InvalidRequestError,
    Route,
    RouteAnswer,
    RouteCall,
    RouteChat,
    RouteStream,
)
from tokenmill.testing.conformance.http_routes import suite

from . import fails


class Body(msgspec.Struct):
    text: str


class Right:
    """Right: it streams the texts of an answer."""

    @property
    def routes(self) -> Sequence[Route]:
        return [Route(path="/say", handle=self.say, body=Body, example={"text": "Hi"})]

    async def say(self, call: RouteCall, body: Body) -> Any:
        return RouteStream(pieces=self.pieces(call, body), media_type="text/plain")

    async def pieces(self, call: RouteCall, body: Body) -> AsyncIterator[object]:
        async for delta in await call.chat(_chat(body)):
            yield [getattr(delta, "text", "")]

    def error(self, status: int, message: str) -> object:
        return {"status": status, "message": message}


def _chat(body: Body) -> RouteChat:
    messages = [{"role": "user", "content": body.text}]
    return RouteChat(model=None, messages=messages, is_streamed=True)


@fails(suite.check_its_routes_can_be_added)
class HasAParameter(Right):
    @property
    def routes(self) -> Sequence[Route]:
        return [Route(path="/say/{name}", handle=self.say, body=Body, example={"text": "Hi"})]


@fails(suite.check_its_examples_are_answered)
class StreamsForEver(Right):
    async def pieces(self, call: RouteCall, body: Body) -> AsyncIterator[object]:
        while True:
            yield b"more"


@fails(suite.check_its_examples_are_answered)
class AnswersWithText(Right):
    async def say(self, call: RouteCall, body: Body) -> Any:
        return "Hi"


@fails(suite.check_calls_do_not_disturb_each_other)
class KeepsTheTexts(Right):
    """The texts of all calls are in one list."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def say(self, call: RouteCall, body: Body) -> Any:
        self.texts.clear()
        async for delta in await call.chat(_chat(body)):
            self.texts.append(getattr(delta, "text", ""))
        return RouteAnswer(body=self.texts)


@fails(suite.check_it_lets_the_servers_errors_pass)
class HidesRefusals(Right):
    async def pieces(self, call: RouteCall, body: Body) -> AsyncIterator[object]:
        with suppress(InvalidRequestError):
            async for piece in super().pieces(call, body):
                yield piece
        yield b"the end"


@fails(suite.check_its_errors_say_what_is_wrong)
class HidesReasons(Right):
    def error(self, status: int, message: str) -> object:
        return {"status": status}
