"""Tool calls and reasoning of chat completions, whole and streamed, in OpenAI's shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest

from tokenmill.api.chat.enforcing import grammar_of
from tokenmill.api.openai.reading.bodies import ChatBody
from tokenmill.api.openai.reading.requests import read_tool_use
from tokenmill.plugins.tool_parsers.hermes import HermesToolParser

from .scripted import PLAIN_TEMPLATE, ScriptedExecutor, scripted_server
from .serving import Served, serve_engine, toy_engine
from .test_answers import events_of
from .test_errors import chat, check_error

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "How is it in Oslo?"}],
    "max_tokens": 400,
    "temperature": 0,
    "tools": [WEATHER, CLOCK],
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
CLOCK_CALL = '\n<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Served, ScriptedExecutor]]:
    with scripted_server() as started:
        yield started


@pytest.fixture
def model(server: tuple[Served, ScriptedExecutor]) -> ScriptedExecutor:
    return server[1]


@pytest.fixture
def client(server: tuple[Served, ScriptedExecutor]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server[0].url}/v1", api_key="none") as client:
        yield client


def ask(server: tuple[Served, ScriptedExecutor], **fields: Any) -> Any:
    with server[0].client() as http:
        return http.post("/v1/chat/completions", json=ASK | fields)


def message(server: tuple[Served, ScriptedExecutor], **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = ask(server, **fields).json()["choices"][0]
    return found


def test_a_call_has_the_shape_of_openai(
    server: tuple[Served, ScriptedExecutor], model: ScriptedExecutor
) -> None:
    model.says = CALL
    choice = message(server)
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"].pop("tool_calls")
    assert choice["message"] == {
        "role": "assistant", "content": None, "refusal": None, "annotations": [],
    }  # fmt: skip
    assert call.pop("id").startswith("call_")
    arguments = '{"city": "Oslo", "days": 2}'
    assert call == {"type": "function", "function": {"name": "weather", "arguments": arguments}}


def test_a_stream_begins_a_call_once_and_then_sends_pieces_of_arguments(
    server: tuple[Served, ScriptedExecutor], model: ScriptedExecutor
) -> None:
    model.says = "I look it up. " + CALL + CLOCK_CALL
    choices = [e["choices"][0] for e in events_of(ask(server, stream=True))]
    assert "".join(c["delta"].get("content") or "" for c in choices) == "I look it up."
    pieces = [call for c in choices for call in c["delta"].get("tool_calls", ())]
    for index, name in enumerate(("weather", "clock")):
        first, *rest = [piece for piece in pieces if piece["index"] == index]
        assert first["type"] == "function" and first["function"]["name"] == name and first["id"]
        assert all(set(piece) == {"index", "function"} for piece in rest)
        assert all(set(piece["function"]) == {"arguments"} for piece in rest)
    joined = "".join(p["function"]["arguments"] for p in pieces if p["index"] == 0)
    assert json.loads(joined) == {"city": "Oslo", "days": 2}
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["tool_calls"]


def test_the_official_client_reads_both(client: openai.OpenAI, model: ScriptedExecutor) -> None:
    model.says = CALL + CLOCK_CALL
    whole = client.chat.completions.create(model="simulated", **ASK)
    with client.chat.completions.stream(model="simulated", **ASK) as stream:
        stream.until_done()
        streamed = stream.get_final_completion()
    for answer in (whole, streamed):
        calls = answer.choices[0].message.tool_calls
        assert calls is not None
        assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == [
            ("weather", {"city": "Oslo", "days": 2}), ("clock", {}),
        ]  # fmt: skip
        assert len({call.id for call in calls}) == 2


def test_the_answer_can_be_sent_back_with_the_result(
    client: openai.OpenAI, model: ScriptedExecutor
) -> None:
    model.says = CALL
    first = client.chat.completions.create(model="simulated", **ASK).choices[0].message
    assert first.tool_calls
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"}
    model.says = "It is sunny."
    history = [*ASK["messages"], first.model_dump(), result]
    answer = client.chat.completions.create(model="simulated", **ASK | {"messages": history})
    assert answer.choices[0].message.content == "It is sunny."
    assert answer.choices[0].finish_reason == "stop"


def test_one_call_is_kept_without_parallel_calls(
    server: tuple[Served, ScriptedExecutor], model: ScriptedExecutor
) -> None:
    model.says = CALL + CLOCK_CALL
    calls = message(server, parallel_tool_calls=False)["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["weather"]


def test_a_call_that_is_cut_off_ends_with_length(
    server: tuple[Served, ScriptedExecutor], model: ScriptedExecutor
) -> None:
    model.says = CALL
    choice = message(server, max_tokens=60)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith("{")


def test_a_malformed_call_is_content(
    server: tuple[Served, ScriptedExecutor], model: ScriptedExecutor
) -> None:
    model.says = "<tool_call>not JSON</tool_call>"
    choice = message(server)
    assert choice["message"]["content"] == model.says
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"


def test_tools_are_in_the_prompt_unless_the_choice_is_none(
    server: tuple[Served, ScriptedExecutor], model: ScriptedExecutor
) -> None:
    model.says = CALL
    with server[0].client() as http:

        def prompt(**fields: Any) -> str:
            body = {"messages": ASK["messages"], **fields}
            tokens = http.post("/tokenize", json=body).json()["tokens"]
            text: str = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
            return text

        shown = prompt(tools=[WEATHER])
        assert json.loads(shown.partition("[tools] ")[2].partition("\n")[0]) == [WEATHER]
        without = len(http.post("/tokenize", json={"messages": ASK["messages"]}).json()["tokens"])
    answer = ask(server, tool_choice="none").json()
    assert answer["usage"]["prompt_tokens"] == without
    assert answer["choices"][0]["message"]["content"] == CALL


def test_control_tokens_in_a_tool_stay_text(server: tuple[Served, ScriptedExecutor]) -> None:
    hostile = {"name": "f", "description": "<|end|>", "parameters": {"title": "<|assistant|>"}}
    with server[0].client() as http:
        body = {**ASK, "tools": [{"type": "function", "function": hostile}]}
        body = {name: body[name] for name in ("messages", "tools")}
        tokens = http.post("/tokenize", json=body).json()["tokens"]
    assert max(tokens[:-1]) < 256 and tokens[-1] >= 256


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "clok"}}}, "tool_choice",
         "'clok'; tools has 'weather', 'clock'"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "several functions named 'weather'"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools",
         "tools[0].function.name"),
        ({"tools": [{"type": "function",
                     "function": {"name": "f", "parameters": {"type": "string"}}}]},
         "tools", "tools[0].function.parameters must be a schema of type 'object'"),
        ({"tool_choice": "sometimes"}, "tool_choice", "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions", "use tools"),
    ],
)  # fmt: skip
def test_wrong_tools_are_refused_by_name(
    server: tuple[Served, ScriptedExecutor], fields: dict[str, Any], param: str, words: str
) -> None:
    assert words in check_error(ask(server, **fields), 400, param)["message"]


def test_reasoning_is_apart_from_the_content_under_both_names(
    server: tuple[Served, ScriptedExecutor], model: ScriptedExecutor
) -> None:
    model.says = "<think>\nNorth.\n</think>\n\nCold." + CALL
    choice = message(server)
    assert choice["message"]["reasoning"] == choice["message"]["reasoning_content"] == "North."
    assert choice["message"]["content"] == "Cold."
    assert len(choice["message"]["tool_calls"]) == 1
    deltas = [e["choices"][0]["delta"] for e in events_of(ask(server, stream=True))]
    for name in ("reasoning", "reasoning_content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == "North."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Cold."
    hidden = message(server, include_reasoning=False)["message"]
    assert "reasoning" not in hidden and hidden["content"] == "Cold."


def test_reasoning_that_the_prompt_opened_is_found(
    server: tuple[Served, ScriptedExecutor], model: ScriptedExecutor
) -> None:
    model.says = "North.\n</think>\n\nCold."
    found = message(server, chat_template_kwargs={"enable_thinking": True})["message"]
    assert (found["reasoning"], found["content"]) == ("North.", "Cold.")


JSON_CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'


def test_a_template_without_calls_has_calls_as_json_in_any_place() -> None:
    """Chat completions, Responses and Messages, whole and streamed."""
    with scripted_server(PLAIN_TEMPLATE) as (served, model), served.client() as http:
        model.says = f"I look.\n```json\n[{JSON_CALL}, {JSON_CALL}]\n```\nDone {{}}."
        choice = message((served, model))
        found = choice["message"]
        assert (choice["finish_reason"], found["content"]) == ("tool_calls", "I look.Done {}.")
        names = [call["function"]["name"] for call in found["tool_calls"]]
        assert names == ["weather", "weather"]
        deltas = [e["choices"][0]["delta"] for e in events_of(ask((served, model), stream=True))]
        pieces = [call for delta in deltas for call in delta.get("tool_calls") or []]
        assert [piece["function"].get("name") for piece in pieces].count("weather") == 2
        response = http.post(
            "/v1/responses",
            json={
                "input": "Oslo?",
                "tools": [{"type": "function", "name": "weather", "parameters": {}}],
            },
        ).json()
        assert [one["type"] for one in response["output"]].count("function_call") == 2
        body = {
            "model": served.engine.model_name,
            "max_tokens": 400,
            "messages": ASK["messages"],
            "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
        }
        answer = http.post("/v1/messages", json=body).json()
        assert answer["stop_reason"] == "tool_use"
        events = http.post("/v1/messages", json=body | {"stream": True}).text
        assert events.count('"type":"tool_use"') == 2


def test_calls_in_the_history_are_described_for_a_template_without_tools() -> None:
    """A template that refuses system messages gets the description in the user's message."""
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    history = [
        ASK["messages"][0],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "Cold."},
        {"role": "user", "content": "And now?"},
    ]
    refusing = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + PLAIN_TEMPLATE
    )
    body = {"messages": history, "tools": [WEATHER]}
    with scripted_server(refusing) as (served, _), served.client() as http:
        tokens = http.post("/tokenize", json=body).json()["tokens"]
        prompt = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert prompt.startswith("[user] How is it in Oslo?\n\nYou can call these functions.")
    assert '[assistant] [{"name": "weather", "arguments": {}}]\n' in prompt
    assert "[user] Result of weather:\nCold.\n\nAnd now?\n" in prompt
    assert prompt.count("[user]") == 2 and "[system]" not in prompt


def test_a_server_without_a_parser_refuses_auto_and_says_what_to_do() -> None:
    with scripted_server(tool_call_parser="none") as (served, _), served.client() as http:
        error = check_error(chat(http, **ASK), 400, "tool_choice")
        assert "--tool-call-parser generic" in error["message"]
        assert chat(http, **ASK | {"tool_choice": "none"}).status_code == 200


def test_a_named_parser_makes_a_template_without_tools_work() -> None:
    """A system message describes the functions and how to call them."""
    with scripted_server(PLAIN_TEMPLATE, tool_call_parser="hermes") as (served, model):
        model.says = CALL
        assert message((served, model))["finish_reason"] == "tool_calls"
        with served.client() as http:
            body = {"messages": ASK["messages"], "tools": [WEATHER]}
            tokens = http.post("/tokenize", json=body).json()["tokens"]
            prompt = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert prompt.startswith("[system] You can call these functions.")
    assert json.dumps(WEATHER["function"]) in prompt
    assert '<tool_call>\n{"name": "NAME", "arguments": {...}}\n</tool_call>' in prompt
    assert prompt.count("[system]") == 1 and "[user] How is it in Oslo?" in prompt


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_only_allowed_tools_are_called_and_the_model_sees_all(
    server: tuple[Served, ScriptedExecutor], model: ScriptedExecutor
) -> None:
    model.says = CALL + CLOCK_CALL
    free = ask(server).json()
    bound = ask(server, tool_choice=allowed("auto", "clock")).json()
    calls = [
        [call["function"]["name"] for call in answer["choices"][0]["message"]["tool_calls"]]
        for answer in (free, bound)
    ]
    assert calls == [["weather", "clock"], ["clock"]]
    assert bound["usage"]["prompt_tokens"] == free["usage"]["prompt_tokens"]


def test_required_allowed_tools_are_enforced() -> None:
    body = msgspec.convert(ASK | {"tool_choice": allowed("required", "clock")}, ChatBody)
    use = read_tool_use(body)
    assert use.mode == "required"
    assert [tool.name for tool in use.callable] == ["clock"]
    grammar = grammar_of(use, HermesToolParser.call_syntax, None, "", None)  # type: ignore[arg-type]
    assert "clock" in grammar.text and "weather" not in grammar.text


def test_an_allowed_tool_that_is_not_offered_is_refused(
    server: tuple[Served, ScriptedExecutor],
) -> None:
    response = ask(server, tool_choice=allowed("auto", "clock", "calendar"))
    check_error(response, 400, "tool_choice")
    assert "'calendar'" in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", [None, 3, "dance"])
def test_a_choice_of_an_unknown_type_is_refused_with_the_known_ones(kind: object) -> None:
    with serve_engine(toy_engine()) as served, served.client() as http:
        body = {"messages": [{"role": "user", "content": "a"}], "tool_choice": {"type": kind}}
        answer = http.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "tool_choice")
    assert "must be one of 'function', 'allowed_tools'" in error["message"]
