"""`create_app`: the API in a program's own server, or mounted in its own application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from tokenmill import ConfigError, EngineStoppedError, ServerSettings, create_app
from tokenmill.core.shell.engine_shell import EngineShell

from .serving import toy_engine

KEY = {"Authorization": "Bearer k"}
ASK = {"prompt": "abc", "max_tokens": 2}


@asynccontextmanager
async def clients(app: Starlette, *, runs: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app; `runs`: its lifespan runs."""
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
    async with http:
        if not runs:
            yield http
            return
        async with app.router.lifespan_context(app):
            yield http


def mounted(engine: EngineShell, **options: Any) -> Starlette:
    """Another app, with the engine's API under /llm, as docs/library.md shows it."""
    api = create_app(engine, **options)
    return Starlette(routes=[Mount("/llm", api)], lifespan=api.router.lifespan_context)


def test_the_lifespan_of_the_app_starts_its_engine_and_closes_it() -> None:
    async def main() -> None:
        engine = toy_engine()
        async with clients(create_app(engine)) as http:
            assert (await http.post("/v1/completions", json=ASK)).status_code == 200
        with pytest.raises(EngineStoppedError):
            await engine.submit("abc")
        with pytest.raises(EngineStoppedError):
            async with clients(create_app(engine)):
                pass

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_engine_that_is_started_belongs_to_its_owner() -> None:
    async def main() -> None:
        async with toy_engine() as engine:
            for runs in (True, False):
                async with clients(create_app(engine), runs=runs) as http:
                    assert (await http.get("/health")).status_code == 200
            await (await engine.submit("abc")).aclose()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_app_that_mounts_it_needs_its_lifespan_and_is_told_so() -> None:
    async def main() -> None:
        app = Starlette(routes=[Mount("/llm", create_app(toy_engine()))])
        async with clients(app) as http:
            for path in ("/llm/v1/models", "/llm/health"):
                answer = await http.get(path)
                assert answer.status_code == 503
                assert "lifespan=app.router.lifespan_context" in answer.json()["error"]["message"]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_keys_guard_a_mounted_app_as_they_guard_a_server() -> None:
    async def main() -> None:
        app = mounted(toy_engine(), api_keys=["k"], admin_key="a")
        async with clients(app) as http:
            assert (await http.get("/llm/health")).status_code == 200
            assert (await http.post("/llm/v1/completions", json=ASK)).status_code == 401
            found = await http.post("/llm/v1/completions", json=ASK, headers=KEY)
            assert len(found.json()["choices"][0]["text"]) == 2
            assert (await http.get("/llm/debug/state", headers=KEY)).status_code == 403
            admin = {"Authorization": "Bearer a"}
            assert (await http.get("/llm/debug/state", headers=admin)).status_code == 200
            document = (await http.get("/llm/openapi.json", headers=KEY)).json()
            assert document["servers"] == [{"url": "/llm"}]
            assert (await http.get("/health")).status_code == 404
            missing = (await http.get("/llm/nothing", headers=KEY)).json()["error"]["message"]
            assert missing == "there is no GET /llm/nothing here; GET /llm/ lists all paths"

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_start_that_fails_fails_the_lifespan() -> None:
    async def main() -> None:
        app = mounted(toy_engine(tool_call_parser="hermess"))
        with pytest.raises(ConfigError, match="hermes"):
            async with clients(app):
                pass

    asyncio.run(asyncio.wait_for(main(), 60))


def test_options_change_the_settings_and_are_known_by_name() -> None:
    settings = ServerSettings(api_keys=["k"], log_requests=True)
    app = create_app(toy_engine(), settings, api_keys=[])
    assert "RequireKey" not in str(app.user_middleware)
    assert "RequireKey" in str(create_app(toy_engine(), settings).user_middleware)
    with pytest.raises(ConfigError, match=r"unknown option 'api_key'\. Did you mean 'api_keys'\?"):
        create_app(toy_engine(), api_key="k")
