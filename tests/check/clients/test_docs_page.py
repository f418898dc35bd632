"""A browser without a network shows /docs, and sends a request from there."""

from __future__ import annotations

from typing import Any

import pytest

from tokenmill.api.app import ROUTES

from ...api.serving import serve_engine, toy_engine
from ..parts import need
from .environments import node_with, run_node


@pytest.mark.parametrize(("prefix", "key"), [("", ""), ("/llm", "secret")])
def test_a_browser_shows_the_api_and_sends_an_example(prefix: str, key: str) -> None:
    settings: dict[str, Any] = {"root_path": prefix, "api_keys": (key,) if key else ()}
    with serve_engine(toy_engine(), **settings) as served:
        page = f"{served.url}{prefix}/docs"
        arguments = [need("chromium", "chromium"), page, *([key] if key else [])]
        found = run_node(node_with("playwright-core@1"), "open_docs.mjs", *arguments)
    paths = {path.replace("\u200b", "") for path in found["paths"]}
    assert "/v1/chat/completions" in paths
    assert paths == {route.path.replace("{name:path}", "{name}") for route in ROUTES}
    assert found["body"]["messages"] and found["status"].startswith("200")
    assert found["timing"] == ["queue", "prefill", "decode"]
    assert all(url.startswith((f"{served.url}{prefix}/", "data:")) for url in found["requests"])
    assert f"{served.url}{prefix}/v1/chat/completions" in found["requests"]
    # The page asks for the document without a key first.
    assert len(found["errors"]) == bool(key) and all("401" in text for text in found["errors"])
