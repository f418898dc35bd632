"""The suite for routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import cast

import msgspec

from ....core.contract.providers.http_routes import (
    Route,
    RouteAnswer,
    Routes,
    RouteStream,
    reason_against,
)
from ....core.errors import InvalidRequestError
from ..hosting import take
from ..reporting import Report, report_time
from ..suites import suite
from .call import ScriptedCall, answer_of

_STATUSES = (400, 401, 404, 405, 408, 413, 415, 429, 500, 503, 504)
_MAX_PIECES = 10_000
"""A stream without an end would fill the memory. The answer of the example has few deltas."""


def check_its_routes_can_be_added(route: object) -> None:
    """Every route has a path of its own, a body that can be decoded, and an example of it."""
    routes = _made(route).routes
    for one in routes:
        assert reason_against(one) is None, reason_against(one)
        assert one.body is None or one.example is not None, f"{one.path} needs an example"
        _body(one)
    paths = [one.path for one in routes]
    assert len(set(paths)) == len(paths), f"two routes have the same path: {paths}"


def check_its_examples_are_answered(route: object) -> None:
    """Every route answers its example with a body or pieces that can be sent."""
    for one in _callable(_made(route)):
        assert _answer(one, ScriptedCall(answer_of("alpha"))), f"{one.path} answers nothing"


def check_calls_do_not_disturb_each_other(route: object) -> None:
    """Two calls at the same time get the texts that they would get alone."""
    for one in _answering(_made(route)):
        first, second = asyncio.run(_both(one))
        assert b"beta" not in first and b"alpha" not in second, (
            f"{one.path} mixes the answers of two calls: {first!r}, {second!r}"
        )


def check_it_lets_the_servers_errors_pass(route: object) -> None:
    """A chat that the server refuses fails the call with the server's error."""
    refusal = InvalidRequestError("planted", param="messages")
    for one in _answering(_made(route)):
        call = ScriptedCall((), refusal=refusal)
        try:
            _answer(one, call)
        except InvalidRequestError as error:
            assert error is refusal
        else:
            assert not call.chats, f"{one.path} answers although its chat was refused"


def check_its_errors_say_what_is_wrong(route: object) -> None:
    """The body of an error has the message, for every status that the server uses."""
    made = _made(route)
    for status in _STATUSES:
        assert b"the reason" in _sent(made.error(status, "the reason")), f"status {status}"


def check_time_is_reported(route: object, report: Report) -> None:
    """Report how long a route needs for an answer of five deltas. There is no limit."""
    for one in _answering(_made(route)):
        started = time.perf_counter()
        for _ in range(20):
            _answer(one, ScriptedCall(answer_of("alpha")))
        report_time(report, one.path, (time.perf_counter() - started) / 20)


@suite
class RouteConformance:
    """The suite for routes.

    Subclass it as Test..., with a fixture `route` that returns the object with the routes, or a
    function that makes it.
    """


def _made(given: object) -> Routes:
    return cast(Routes, take(given))


def _callable(routes: Routes) -> list[Route]:
    """The routes with an example. Another test reports the others."""
    return [one for one in routes.routes if one.body is None or one.example is not None]


def _answering(routes: Routes) -> Iterator[Route]:
    """The routes that answer their example. Another test reports the others."""
    for one in _callable(routes):
        try:
            _answer(one, ScriptedCall(answer_of("alpha")))
        except Exception:
            continue
        yield one


def _body(route: Route) -> object:
    return None if route.body is None else msgspec.convert(route.example, route.body)


def _answer(route: Route, call: ScriptedCall) -> bytes:
    return asyncio.run(_ask(route, call))


async def _both(route: Route) -> tuple[bytes, bytes]:
    calls = [ScriptedCall(answer_of(word)) for word in ("alpha", "beta")]
    first, second = await asyncio.gather(*(_ask(route, call) for call in calls))
    return first, second


async def _ask(route: Route, call: ScriptedCall) -> bytes:
    answer = await route.handle(call, _body(route))
    if isinstance(answer, RouteStream):
        sent: list[bytes] = []
        async for piece in answer.pieces:
            assert len(sent) < _MAX_PIECES, f"{route.path} streams more than {_MAX_PIECES} pieces"
            sent.append(_sent(piece))
        return b"".join(sent)
    assert isinstance(answer, RouteAnswer), f"{route.path} answers {answer!r:.100}"
    assert 200 <= answer.status < 300, f"{route.path} answers its example with {answer.status}"
    return _sent(answer.body)


def _sent(body: object) -> bytes:
    return body if isinstance(body, bytes) else msgspec.json.encode(body)
