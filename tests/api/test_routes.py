"""Plugins add paths to the server: behind its keys and limits, and without harm to other paths."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.core.plugin_packages import Packages
from tokenmill.api.app import create_app, plugin_routes
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import PluginError

from .scripted import scripted_server
from .serving import toy_engine

HEADER = """
import asyncio, msgspec
from tokenmill.plugin import (
    InvalidRequestError, Route, RouteAnswer, RouteChat, RouteStream, hookimpl, kinds,
)
TOKENMILL_API = (1, 1)
"""
CODE = """
class Body(msgspec.Struct):
    act: str = ""
    text: str = "Hi"

async def ask(call, body):
    messages = [{"role": "user", "content": body.text}]
    if body.act == "raises":
        raise ValueError("planted")
    if body.act == "cancels":
        raise asyncio.CancelledError
    if body.act == "refuses":
        raise InvalidRequestError("not this", param="act")
    if body.act == "text":
        return "text"
    if body.act == "waits":
        await asyncio.sleep(3600)
    if body.act == "outlives":
        task = asyncio.create_task(start_late(call, messages))
        return RouteAnswer(body=late)
    if body.act == "temperature":
        await call.chat(RouteChat(
            model=None, messages=messages, sampling={"temperature": -1}, is_streamed=False,
            names={"temperature": "warmth"}))
    is_streamed = body.act != "whole"
    answer = await call.chat(RouteChat(
        model=None, messages=messages, sampling={"max_tokens": 30}, is_streamed=is_streamed))
    if body.act == "whole":
        return RouteAnswer(body=["".join([d.text async for d in answer]), answer.end.num_tokens])
    return RouteStream(pieces=pieces(answer, body), media_type="text/plain")

late = []

async def start_late(call, messages):
    await asyncio.sleep(0.05)
    try:
        await call.chat(RouteChat(model=None, messages=messages, is_streamed=True))
    except Exception as error:
        late.append(str(error))

async def pieces(answer, body):
    while body.act == "floods":
        yield b"flood"
    async for delta in answer:
        yield delta.text.encode()
        if body.act == "breaks":
            raise ValueError("planted")
    yield [answer.end.reason]

async def now(call, body):
    return RouteAnswer(body={"model": call.model.names[0]})

class Asking:
    routes = [Route(path="/ask", handle=ask, body=Body), Route(path="/ask/now", handle=now)]

    def error(self, status, message):
        return {"oops": message, "status": status}

@hookimpl
def register(registry):
    registry.offer(kinds.ROUTE, "asking", Asking)
"""
SAYS = "It is late."
JSON = "application/json"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def asking(packages: Packages) -> Any:
    packages.install("asking", CODE, header=HEADER)
    with (
        scripted_server(route="asking") as (served, model),
        httpx.Client(base_url=served.url) as http,
    ):
        model.says = SAYS
        yield http


def ask(http: httpx.Client, act: str, **fields: Any) -> httpx.Response:
    return http.post("/ask", json={"act": act} | fields)


def test_a_handler_answers_whole_and_streamed(asking: httpx.Client) -> None:
    whole = ask(asking, "whole", other=1)
    assert whole.json() == [SAYS, len(SAYS) + 1]
    assert whole.headers["x-tokenmill-ignored-fields"] == "other"
    assert whole.headers["x-request-id"].startswith("asking-")
    streamed = ask(asking, "")
    assert streamed.text == f'{SAYS}["stop"]\n'
    assert streamed.headers["content-type"].startswith("text/plain")
    assert asking.get("/ask/now").json().keys() == {"model"}
    assert "/ask/now" in asking.get("/").text


@pytest.mark.parametrize("act", ["raises", "cancels", "text"])
def test_a_failing_handler_fails_its_request_and_is_named(asking: httpx.Client, act: str) -> None:
    failed = ask(asking, act)
    assert failed.status_code == 500
    assert failed.json() == {
        "oops": "plugin 'asking' (asking 1.0) failed in 'route'",
        "status": 500,
    }
    assert ask(asking, "whole").status_code == 200
    found = asking.get("/plugins").json()
    [plugin] = [one for one in found["plugins"] if one["name"] == "asking"]
    assert plugin["state"] == "enabled" and plugin["failures"] == 1
    [hook] = [one for one in found["hooks"] if one["plugin"] == "asking"]
    assert hook["hook"] == "route" and hook["calls"] == 2 and hook["failures"] == 1


def test_a_stream_that_fails_ends_with_the_error(asking: httpx.Client) -> None:
    broken = ask(asking, "breaks")
    assert broken.status_code == 200
    text, _, error = broken.text.partition("{")
    assert text and SAYS.startswith(text), "the first piece, of one token or several"
    assert "failed in 'route'" in json.loads("{" + error)["oops"]


def test_errors_for_clients_have_the_form_and_the_names_of_the_route(asking: httpx.Client) -> None:
    refused = ask(asking, "refuses")
    assert refused.status_code == 400 and refused.json()["oops"] == "not this"
    assert "warmth must be" in ask(asking, "temperature").json()["oops"]
    assert asking.get("/ask").json()["status"] == 405
    assert asking.post("/ask", content="{", headers={"content-type": JSON}).status_code == 400
    assert asking.post("/ask", content="{}").json()["status"] == 415
    assert "error" in asking.get("/nowhere").json()
    assert asking.get("/ask/later").json().keys() == {"oops", "status"}
    found = asking.get("/plugins").json()["hooks"]
    assert not any(one["failures"] for one in found if one["plugin"] == "asking")


def test_a_handler_that_waits_ends_when_its_client_leaves(asking: httpx.Client) -> None:
    with pytest.raises(httpx.ReadTimeout):
        asking.post("/ask", json={"act": "waits"}, timeout=0.2)
    assert ask(asking, "whole").status_code == 200
    found = asking.get("/plugins").json()["hooks"]
    assert not any(one["failures"] for one in found if one["plugin"] == "asking")


def test_a_task_that_outlives_its_handler_starts_no_chat(asking: httpx.Client) -> None:
    assert ask(asking, "outlives").json() == []
    while not (found := ask(asking, "outlives").json()):
        time.sleep(0.02)
    assert "after the end of its call" in found[0]


def test_a_stream_that_never_waits_ends_when_its_client_leaves(asking: httpx.Client) -> None:
    with asking.stream("POST", "/ask", json={"act": "floods"}) as answer:
        assert next(answer.iter_bytes()).startswith(b"flood")
    assert asking.get("/ask/now", timeout=60).status_code == 200


def test_keys_and_their_limits_hold(packages: Packages, tmp_path: Path) -> None:
    packages.install("asking", CODE, header=HEADER)
    keys = tmp_path / "keys.toml"
    keys.write_text('[ann]\nkey = "secret"\nrequests_per_minute = 1\n')
    settings = {"api_key_file": keys, "max_body_bytes": 1000}
    with (
        scripted_server(route="asking", settings=settings) as (served, model),
        httpx.Client(base_url=served.url) as http,
    ):
        model.says = SAYS
        assert ask(http, "whole").json()["status"] == 401
        assert http.get("/ask/now").status_code == 401
        http.headers["authorization"] = "Bearer secret"
        assert http.get("/ask/now").status_code == 200
        assert ask(http, "whole", text="x" * 1000).json()["status"] == 413
        assert ask(http, "whole").status_code == 200
        limited = ask(http, "whole")
        assert limited.json()["status"] == 429 and "retry-after" in limited.headers


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/completions", "which is a path of the server's own"),
        ("/v1/models/mine", "which is a path of the server's own"),
        ("/debug/mine", "which is a path of the server's own"),
        ("/docs/mine", "which is a path of the server's own"),
        ("/ask/", "must be parts of letters"),
        ("ask", "must be parts of letters"),
        ("/ask/{name}", "must be parts of letters"),
    ],
)
def test_a_route_that_hides_a_path_of_the_server_is_refused_at_the_start(
    packages: Packages, path: str, message: str
) -> None:
    packages.install("asking", CODE.replace("/ask/now", path), header=HEADER)
    with pytest.raises(PluginError, match=message) as found:
        plugin_routes(EngineConfig(route="asking"))
    assert "'asking'" in str(found.value) and "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ('path="/ask", handle=now', "has the route /ask twice$"),
        ('path="/ask/now", handle=5', "the handler of /ask/now must be a function, got 5"),
    ],
)
def test_a_route_that_cannot_be_called_is_refused_at_the_start(
    packages: Packages, wrong: str, message: str
) -> None:
    packages.install("asking", CODE.replace('path="/ask/now", handle=now', wrong), header=HEADER)
    with pytest.raises(PluginError, match=message):
        plugin_routes(EngineConfig(route="asking"))


def test_the_documented_route_answers(packages: Packages) -> None:
    page = (ROOT / "docs/plugins/route.md").read_text(encoding="utf-8")
    packages.install("asking", page.partition("```python\n")[2].partition("```")[0], header="")
    with (
        scripted_server(route="asking") as (served, model),
        httpx.Client(base_url=served.url) as http,
    ):
        model.says = SAYS
        found = http.post("/ask", json={"text": "Is it late?"}).json()
        assert found == {"answer": SAYS, "tokens": len(SAYS) + 1}
        assert "text" in http.post("/ask", json={}).json()["error"]


def test_missing_paths_have_the_form_of_the_only_plugin_in_their_folder(
    packages: Packages,
) -> None:
    for name, paths in {"asking": ("/a/x", "/b/x", "/v1/x"), "other": ("/b/y", "/a/c/y")}.items():
        routes = "".join(f'Route(path="{path}", handle=now), ' for path in paths)
        code = CODE.replace('Route(path="/ask", handle=ask, body=Body), ', routes)
        code = code.replace('Route(path="/ask/now", handle=now)', "").replace('"oops"', f'"{name}"')
        packages.install(name, code.replace('ROUTE, "asking"', f'ROUTE, "{name}"'), header=HEADER)
    with scripted_server(route="asking,other") as (served, _), served.client() as http:
        forms = {
            path: next(iter(http.get(path).json()))
            for path in ("/a/z", "/a/c/z", "/a/c/d/e", "/b/z", "/v1/z", "/a")
        }
    assert forms == {
        "/a/z": "asking",
        "/a/c/z": "other",
        "/a/c/d/e": "other",
        "/b/z": "error",
        "/v1/z": "error",
        "/a": "error",
    }


def test_two_plugins_with_one_path_and_unknown_names_are_refused(packages: Packages) -> None:
    packages.install("asking", CODE, header=HEADER)
    packages.install("other", CODE.replace('"asking"', '"other"'), header=HEADER)
    for route, message in {
        "asking,other": "both have the route /ask; disable one of them",
        "askin": "named by --route, but not installed. Did you mean 'asking'",
        "fcfs": "no route named 'fcfs'",
    }.items():
        with pytest.raises(PluginError, match=message):
            plugin_routes(EngineConfig(route=route))


def test_without_the_flag_or_the_plugins_file_there_are_no_further_paths(
    packages: Packages,
) -> None:
    packages.install("asking", CODE, header=HEADER)
    with scripted_server() as (served, _), httpx.Client(base_url=served.url) as http:
        assert http.post("/ask", json={}).status_code == 404
        assert http.get("/api/tags").status_code == 404
    packages.write_settings('[plugins]\nenable = ["asking"]\n')
    with scripted_server() as (served, _), httpx.Client(base_url=served.url) as http:
        assert http.get("/ask/now").status_code == 200


def test_an_app_that_starts_its_own_engine_has_them(packages: Packages) -> None:
    packages.install("asking", CODE, header=HEADER)

    async def ask_inside() -> httpx.Response:
        app = create_app(toy_engine(route="asking"))
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
                assert "asking" in (await http.get("/metrics")).text
                return await http.get("/ask/now")

    assert asyncio.run(ask_inside()).status_code == 200
