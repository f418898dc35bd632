"""Places in the plugins of the server's process: parsers, transforms, routes and routers."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent

from .places import NAME, Place


def _parser(kind: str, parse: str, reasons: str = "return []", hook: str = "parse") -> Place:
    code = f"""
    class Provider:
        needs_special_tokens = False
        call_syntax = marks = None

        def reasons_against(self, chat):
            {reasons}

        def parse(self, answer, what):
            yield None
            {parse}

    @hookimpl
    def register(registry):
        registry.offer(kinds.{kind.upper()}, "{NAME}", Provider)
    """
    return Place(kind=kind, hook=f"{kind}.{hook}", code=dedent(code), options={kind: NAME})


def _router(method: str) -> Place:
    code = f"""
    class Provider:
        def route(self, request, replicas):
            return {"act(request)" if method == "route" else 0}

        def forget(self, index):
            {"act(index)" if method == "forget" else "pass"}

    @hookimpl
    def register(registry):
        registry.offer(kinds.ROUTER, "{NAME}", Provider)
    """
    options = {"router": NAME, "data_parallel_size": 2}
    return Place(kind="router", hook=f"router.{method}", code=dedent(code), options=options)


_TRANSFORM = f"""
from tokenmill.plugin import Transformed

class Provider:
    def begin(self, texts, options):
        act(texts)
        return Transformed(texts=[one.text for one in texts])

@hookimpl
def register(registry):
    registry.offer(kinds.TRANSFORM, "{NAME}", Provider)
"""


def _media_processor(method: str) -> Place:
    code = f"""
    class Provider:
        name = "{NAME}"

        @classmethod
        def reasons_against(cls, config):
            return {"act(config)" if method == "reasons_against" else "[]"}

        def __init__(self, config, kwargs):
            pass

        def process(self, image):
            return act(image)

    def make():
        return Provider

    @hookimpl
    def register(registry):
        registry.offer(kinds.MEDIA_PROCESSOR, "{NAME}", make)
    """
    options = {"media_processor": NAME}
    return Place(kind="media_processor", hook=method, code=dedent(code), options=options)


ROUTE_PATH = "/hostile"


def _http_route(handle: str, error: str = "pass") -> Place:
    code = f"""
    from tokenmill.plugin import Route, RouteAnswer, RouteStream

    async def pieces(call):
        yield act(call)

    async def handle(call, body):
        {handle}

    class Provider:
        routes = [Route(path="{ROUTE_PATH}", handle=handle)]

        def error(self, status, message):
            {error}
            return {{"error": {{"message": message}}}}

    @hookimpl
    def register(registry):
        registry.offer(kinds.ROUTE, "{NAME}", Provider)
    """
    return Place(kind="route", hook="route", code=dedent(code), options={"route": NAME})


SERVING: Mapping[str, Place] = {
    "http handler": _http_route("return act(call) or RouteAnswer(body=b'fine')"),
    "http stream": _http_route("return RouteStream(pieces=pieces(call), media_type='text/plain')"),
    "http error": _http_route("raise ValueError('planted')", "act(message)"),
    "transform": Place(kind="transform", hook="transform", code=_TRANSFORM, options={}),
    "tool parser": _parser("tool_call_parser", "yield act(answer)"),
    "reasoning parser": _parser("reasoning_parser", "yield act(answer)"),
    "parser reasons": Place(
        kind="tool_call_parser",
        hook="reasons_against",
        code=_parser("tool_call_parser", "return", "return act(chat)").code,
        options={"tool_call_parser": "auto"},
    ),
    "media reasons": _media_processor("reasons_against"),
    "process": _media_processor("process"),
    "route": _router("route"),
    "forget": _router("forget"),
}
