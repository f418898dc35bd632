"""A browser without a network shows the live page, with the figures of /metrics."""

from __future__ import annotations

import re

import httpx
import pytest

from ...api.serving import serve_engine, toy_engine
from ..parts import need
from .environments import node_with, run_node


@pytest.mark.parametrize(("prefix", "key"), [("", ""), ("/llm", "sk-admin")])
def test_the_live_page_shows_the_engine_and_answers(prefix: str, key: str) -> None:
    with serve_engine(toy_engine(), root_path=prefix, admin_key=key or None) as served:
        arguments = [need("chromium", "chromium"), f"{served.url}{prefix}/live", key]
        found = run_node(node_with("playwright-core@1"), "open_live.mjs", *filter(None, arguments))
        metrics = httpx.get(f"{served.url}/metrics").text
    assert found["errors"] == [] and found["nameless"] == []
    assert all(url.startswith((f"{served.url}{prefix}/", "data:")) for url in found["requests"])
    assert found["answer"]
    for name, title in (("prompt", "Prompt"), ("generation", "Generated")):
        value = re.search(rf"{name}_tokens_total\{{.*\}} (\d+)", metrics)
        assert value is not None and found["figures"][title] == f"{value[1]} tokens"
    assert re.fullmatch(r"\d+ free, \d+ cached, 0 held, 0 shared\.", found["blocks"])
    assert "1 decoded, for 1 requests" in found["step"]
    assert dict(found["drawn"]) == dict.fromkeys(
        ("Tokens of each step", "Time of each step", "State of each KV block",
         "Time to first token", "Time between two tokens"), True,
    )  # fmt: skip
    controls = {"message", "temperature", "top-p", "max-tokens", "logprobs", "send", "API"}
    assert controls <= set(found["reached"]), "the keyboard reaches every control"
