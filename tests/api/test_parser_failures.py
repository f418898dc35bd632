"""Parsers of answers run in the server's process: what they do there is counted and named."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.core.plugin_packages import Packages
from tokenmill.api.serving import answers

from .scripted import scripted_server

HEADER = """
import threading

from tokenmill.plugin import ContentDelta, hookimpl, kinds

TOKENMILL_API = (1, 1)
"""
PARSER = """
class Odd:
    needs_special_tokens = False
    call_syntax = None

    def reasons_against(self, chat):
        return []

    def parse(self, answer, tools):
        yield None
        {act}

@hookimpl
def register(registry):
    registry.offer(kinds.TOOL_CALL_PARSER, "odd", Odd)
"""
CHAT = {
    "messages": [{"role": "user", "content": "x"}],
    "max_tokens": 20,
    "tools": [{"type": "function", "function": {"name": "clock"}}],
}


@pytest.fixture
def odd(packages: Packages, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A server whose parser acts as the test says."""
    packages.install("odd", PARSER.format(act=request.param), header=HEADER)
    packages.write_settings('[tool_call_parser]\nuse = "odd"\n')
    with scripted_server() as (served, model), httpx.Client(base_url=served.url) as http:
        model.says = "It is late."
        yield http


@pytest.mark.parametrize("odd", ["raise ValueError('planted')"], indirect=True)
def test_a_parser_that_fails_leaves_content_and_is_counted_for_its_plugin(
    odd: httpx.Client,
) -> None:
    for _ in range(2):
        answer = odd.post("/v1/chat/completions", json=CHAT).json()
        assert answer["choices"][0]["message"]["content"] == "It is late."
    found = odd.get("/plugins").json()
    [plugin] = [one for one in found["plugins"] if one["name"] == "odd"]
    [hook] = [one for one in found["hooks"] if one["plugin"] == "odd"]
    assert plugin["failures"] == 2
    assert (hook["hook"], hook["calls"], hook["failures"]) == ("tool_call_parser.parse", 2, 2)
    assert hook["seconds"] > 0
    lines = odd.get("/metrics").text.splitlines()
    [line] = [line for line in lines if "plugin_hook_failures_total{" in line and "odd" in line]
    assert line.endswith(" 2.0") and 'hook="tool_call_parser.parse"' in line


@pytest.mark.parametrize(
    "odd",
    ["from tokenmill.core.errors import HookTimeoutError; raise HookTimeoutError('planted')"],
    indirect=True,
)
def test_the_request_of_a_parser_that_was_interrupted_fails(odd: httpx.Client) -> None:
    answer = odd.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 500 and "'odd'" in answer.json()["error"]["message"]
    without_tools = {**CHAT, "tools": []}
    assert odd.post("/v1/chat/completions", json=without_tools).status_code == 200


TOOLS = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": {
        "input": "x",
        "max_output_tokens": 20,
        "tools": [{"type": "function", "name": "clock"}],
    },
    "/v1/messages": {
        "messages": CHAT["messages"],
        "max_tokens": 20,
        "tools": [{"name": "clock", "input_schema": {"type": "object"}}],
    },
}


@pytest.mark.parametrize(
    "odd", ["yield ContentDelta(f'<{threading.current_thread().name}>')"], indirect=True
)
def test_long_answers_are_parsed_where_a_parser_is_interrupted(
    odd: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal interrupts only the main thread of a server, which runs the event loop."""
    [model] = odd.get("/v1/models").json()["data"]
    for length in (answers.LONG_ANSWER, 4):
        monkeypatch.setattr(answers, "LONG_ANSWER", length)
        for path, body in TOOLS.items():
            answer = odd.post(path, json={**body, "model": model["id"]})
            assert answer.status_code == 200, answer.text
            [name] = re.findall("<(.*?)>", answer.text)
            assert "AnyIO" not in name, (path, length)
            assert "It is late." in answer.text
