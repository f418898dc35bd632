"""A history with tool calls is rendered by templates that know them, and refused by others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tokenmill.backends.text.tokenizer import HFTokenizer
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.shell.local_engine import EngineParts, local_engine

from .serving import Served, SteeredExecutor, serve_engine
from .test_errors import chat, check_error

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}"
    "{% for name, value in call.function.arguments.items() %} {{ name }}={{ value }}{% endfor %}"
    "{% endfor %}{{ m.tool_call_id or '' }}\n{% endfor %}"
)
CALL = {"id": "c1", "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Oslo", "days": 2}'}}  # fmt: skip
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "How is it?"},
    {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
]


@pytest.fixture(scope="module")
def with_tools() -> Iterator[Served]:
    """A server whose model's template shows tool calls; its tokens are bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()

    def build(config: EngineConfig, progress: Callable[[str, float], None]) -> EngineParts:
        return EngineParts(
            executor=SteeredExecutor(),
            tokenizer=HFTokenizer(backend, chat_template=TEMPLATE),
            plugins=PluginHost.load(config),
        )

    with serve_engine(local_engine(EngineConfig(disable_log_stats=True), build)) as served:
        yield served


def test_a_history_with_tool_calls_and_no_content_is_rendered(with_tools: Served) -> None:
    with with_tools.client() as http:
        assert chat(http, messages=HISTORY).status_code == 200
        tokens = http.post("/tokenize", json={"messages": HISTORY}).json()["tokens"]
        text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text == ("[user] How is it?\n[assistant] weather city=Oslo days=2\n[tool] sunnyc1\n")


def test_arguments_that_are_not_an_object_are_refused_by_place(with_tools: Served) -> None:
    broken = CALL | {"function": {"name": "weather", "arguments": "Oslo"}}
    messages = [HISTORY[0], {"role": "assistant", "content": None, "tool_calls": [broken]}]
    with with_tools.client() as http:
        error = check_error(chat(http, messages=messages), 400, "messages")
    assert "messages[1].tool_calls[0].function.arguments" in error["message"]


def test_a_tool_call_cannot_be_continued(with_tools: Served) -> None:
    with with_tools.client() as http:
        answer = chat(http, messages=HISTORY[:2], continue_final_message=True)
    assert "no content" in check_error(answer, 400, "continue_final_message")["message"]


def test_a_template_without_tool_calls_shows_them_as_text(real: Served) -> None:
    with real.client() as http:
        assert chat(http, messages=HISTORY).status_code == 200
        tokens = http.post("/tokenize", json={"messages": HISTORY}).json()["tokens"]
        text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert '[{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}]<|im_end|>' in text
    assert "<|im_start|>user\nResult of weather:\nsunny<|im_end|>" in text


def test_calls_that_a_template_without_them_could_not_show_are_refused(real: Served) -> None:
    messages = [HISTORY[0], {"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}]
    with real.client() as http:
        error = check_error(chat(http, messages=messages), 400, "messages")
    assert "tool_calls" in error["message"]


def test_other_apis_name_their_own_field_of_arguments(with_tools: Served) -> None:
    deep: dict[str, Any] = {}
    for _ in range(40):
        deep = {"a": deep}
    used = {"type": "tool_use", "id": "c1", "name": "weather", "input": deep}
    message = {"role": "assistant", "content": [used]}
    item = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{"}
    with with_tools.client() as http:
        body = {"model": with_tools.engine.model_name, "messages": [message], "max_tokens": 2}
        refused = http.post("/v1/messages", json=body)
        assert "messages[].content[].input is nested too deeply" in refused.text
        error = check_error(http.post("/v1/responses", json={"input": [item]}), 400, "input")
        assert "input[].arguments must be a JSON object" in error["message"]
