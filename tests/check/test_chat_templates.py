"""The chat templates in llama.cpp's sources render as transformers renders them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tokenmill.api.parsing.chosen_parsers import build_answer_parsers
from tokenmill.backends.text.chat.template import ChatTemplate
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import InvalidRequestError

from .llama_cpp import VERSION_FILE, llama_cpp_source

# The parsers are found by their entry points.
pytestmark = pytest.mark.depends_on(VERSION_FILE, "src/plugins", "plugins.toml", "pyproject.toml")

SYSTEM = {"role": "system", "content": " You are kind.\n"}
CHAT = [
    {"role": "user", "content": "What is 2+2?"},
    {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\nIt is 4."},
    {"role": "user", "content": '  And <b>"3"</b> & 日本, {{ messages }}?'},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

NEED_TOOLS = {
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "fireworks-ai-llama-3-firefunction-v2",
}
"""These fail without tools, in transformers, too."""
TOOLS: dict[str, Any] = {"tools": [], "functions": "[]", "datetime": "today"}


TOOL = {
    "type": "function",
    "function": {
        "name": "find_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Its name."}},
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "a1b2c3d4e",
    "type": "function",
    "function": {"name": "find_weather", "arguments": {"city": "Oslo"}},
}
WITH_TOOLS: list[dict[str, Any]] = [
    SYSTEM,
    {"role": "user", "content": "How warm is it in Oslo?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "12 degrees", "tool_call_id": "a1b2c3d4e"},
]


@functools.cache
def templates() -> dict[str, str]:
    folder: Path = llama_cpp_source() / "models" / "templates"
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.jinja")}


@pytest.mark.parametrize("prompt", [True, False], ids=["prompt", "no-prompt"])
@pytest.mark.parametrize("chat", [CHAT, [SYSTEM, *CHAT]], ids=["chat", "system"])
def test_templates_render_as_in_transformers(chat: list[dict[str, str]], prompt: bool) -> None:
    """A chat that transformers' rendering refuses is refused here, too."""
    assert len(templates()) == 71
    refused = set()
    for name, source in templates().items():
        kwargs = TOOLS if name in NEED_TOOLS else {}
        template = ChatTemplate(source, TOKENS, name)
        expected = expected_rendering(source, chat, prompt, kwargs)
        if expected is None:
            refused.add(name)
            with pytest.raises(InvalidRequestError):
                rendered(template, chat, prompt, kwargs)
        else:
            assert rendered(template, chat, prompt, kwargs) == expected, name
    assert refused == ({"google-gemma-2-2b-it"} if SYSTEM in chat else set())


def test_templates_that_mention_tools_render_a_conversation_with_tools() -> None:
    """In transformers, a message with calls needs an empty content."""
    alike, refused = set(), set()
    with_text = [{**message, "content": message["content"] or ""} for message in WITH_TOOLS]
    for name, source in templates().items():
        template = ChatTemplate(source, TOKENS, name)
        if not template.format.shows_tools:
            continue
        try:
            found = rendered(template, WITH_TOOLS, True, {}, tools=[TOOL])
        except InvalidRequestError:
            refused.add(name)
            continue
        assert "find_weather" in found and "12 degrees" in found, name
        expected = expected_rendering(source, with_text, True, {"tools": [TOOL]})
        assert expected in (found, None), name
        alike |= {name} if found == expected else set()
    assert refused == {"Kimi-K2-Instruct", "Kimi-K2-Thinking"}  # they change a list: not allowed
    assert len(alike) == 59


PARSERS = {
    # by template: the parsers of calls and of reasoning
    "Qwen-Qwen3-0.6B": ("hermes", "think"),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", "none"),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", "none"),
    "ibm-granite-granite-4.0": ("hermes", "none"),
    "Qwen3.5-4B": ("qwen3-xml", "think"),
    "Qwen3-Coder": ("qwen3-xml", "none"),
    "GLM-4.6": ("glm", "think"),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3-json", "none"),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3-json", "none"),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", "none"),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", "mistral-think"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", "none"),
    "google-gemma-4-31B-it": ("gemma", "gemma-think"),
    "LFM2-8B-A1B": ("pythonic", "none"),
    "openai-gpt-oss-120b": ("gpt-oss", "gpt-oss"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("generic", "think"),
    "microsoft-Phi-3.5-mini-instruct": ("generic", "none"),
}


@pytest.mark.parametrize("name", PARSERS)
def test_the_parsers_fit_the_template(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The log says which ones were chosen."""
    monkeypatch.chdir(tmp_path)
    with caplog.at_level("DEBUG"):
        build_answer_parsers(EngineConfig(), ChatTemplate(templates()[name], TOKENS, name).format)
    chosen = {record.msg: vars(record).get("parser") for record in caplog.records}
    found = chosen["tool_call_parser_chosen"], chosen["reasoning_parser_chosen"]
    assert found == PARSERS[name]


def rendered(
    template: ChatTemplate,
    chat: list[dict[str, Any]],
    prompt: bool,
    kwargs: dict[str, Any],
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    return template.render(
        chat,
        add_generation_prompt=prompt,
        continuation_mark=None,
        template_kwargs=kwargs,
        tools=tools,
    )


def expected_rendering(
    source: str, chat: list[dict[str, Any]], prompt: bool, kwargs: dict[str, Any]
) -> str | None:
    """Return transformers' rendering, or None if the template raises an error."""
    given = {"tools": None, "documents": None, **TOKENS, **kwargs}
    try:
        texts, _ = render_jinja_template(
            [chat], chat_template=source, add_generation_prompt=prompt, **given
        )
    except Exception:
        return None
    return str(texts[0])
