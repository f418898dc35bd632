"""Chats rendered and encoded as transformers does it, for templates of many models' manner."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from tokenmill.backends.text.chat import template as chat_template
from tokenmill.backends.text.chat.template import ChatTemplate
from tokenmill.backends.text.tokenizer import HFTokenizer
from tokenmill.core.errors import ConfigError, InvalidRequestError

BuildTokenizer = Callable[[str], HFTokenizer]

TEMPLATES = {
    "llama3": """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}{%- set system = "" %}{%- endif %}
{{- "<|im_start|>system\\n" }}{% if tools is not none %}{{ "Tools" }}{% endif %}
{{- system + "<|im_end|>" }}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n\\n' + message['content'] | trim + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n\\n' }}{%- endif %}""",
    "mistral": """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate') }}{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}""",
    "thinking": """{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' and not m.content.startswith('<tool_response>') %}
{%- set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}{% set content = m.content %}
{%- if '</think>' in content and loop.index0 < ns.last %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{- '<|im_start|>' ~ m.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}""",
    "generation": """{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}
{% generation %}{{ m | tojson(indent=1) }}{{ m.content }}{% endgeneration %}{% endfor %}""",
}

CHATS = {
    "one": [{"role": "user", "content": "hi 12"}],
    "system": [{"role": "system", "content": " Be kind.\n"}, {"role": "user", "content": "  hi\n"}],
    "turns": [
        {"role": "user", "content": "What is 日本?"},
        {"role": "assistant", "content": "<think>\nWell.\n</think>\n\nA country & <b>more</b>."},
        {"role": "user", "content": "def f():\n\treturn '🙂'  "},
    ],
}


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("prompt", [True, False])
def test_the_models_own_template_gives_transformers_tokens(
    smollm: HFTokenizer, oracle: Any, chat: str, prompt: bool
) -> None:
    """With and without the generation prompt."""
    expected = oracle.apply_chat_template(
        CHATS[chat], add_generation_prompt=prompt, return_dict=False
    )
    assert smollm.encode_chat(CHATS[chat], add_generation_prompt=prompt) == expected


def test_any_ordinary_text_in_a_chat_gives_transformers_tokens(
    smollm: HFTokenizer, oracle: Any, text: str
) -> None:
    """Unicode, code, spaces at the borders: all as in one go."""
    chat = [{"role": "user", "content": text}]
    expected = oracle.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert smollm.encode_chat(chat) == expected


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
def test_other_templates_give_transformers_tokens_or_a_refusal(
    smollm_with: BuildTokenizer, oracle: Any, name: str, chat: str
) -> None:
    """Trim, namespaces, loop controls, tojson, generation blocks, raise_exception."""
    tokenizer = smollm_with(TEMPLATES[name])
    try:
        expected = oracle.apply_chat_template(
            CHATS[chat],
            chat_template=TEMPLATES[name],
            add_generation_prompt=True,
            return_dict=False,
        )
    except Exception:
        with pytest.raises(InvalidRequestError, match="roles must alternate") as caught:
            tokenizer.encode_chat(CHATS[chat])
        assert caught.value.param == "messages"
    else:
        assert tokenizer.encode_chat(CHATS[chat]) == expected


@pytest.mark.parametrize("name", ["llama3", "thinking"])
@pytest.mark.parametrize("content", ["Sure, here", "Sure, here is ", "", "a <|im_end|> b", "<"])
def test_continued_final_message_ends_where_its_content_does(
    smollm_with: BuildTokenizer, oracle: Any, name: str, content: str
) -> None:
    """As in transformers, for templates that keep the spaces around it and that trim them."""
    chat = [*CHATS["one"], {"role": "assistant", "content": content}]
    tokenizer = smollm_with(TEMPLATES[name])
    ids = tokenizer.encode_chat(chat, add_generation_prompt=False, continue_final_message=True)
    expected = oracle.apply_chat_template(
        chat, chat_template=TEMPLATES[name], continue_final_message=True, tokenize=False
    )
    assert tokenizer.decode(ids, skip_special_tokens=False) == expected
    if "<" not in content:
        assert ids == oracle.encode(expected)


def test_continuing_and_prompting_exclude_each_other(smollm: HFTokenizer) -> None:
    """One would undo the other."""
    with pytest.raises(InvalidRequestError) as caught:
        smollm.encode_chat(CHATS["one"], continue_final_message=True)
    assert caught.value.param == "continue_final_message"


def test_a_final_message_that_the_template_drops_cannot_be_continued(
    smollm_with: BuildTokenizer,
) -> None:
    """There is no place to end at."""
    tokenizer = smollm_with("{{ messages[0].content }}{{ messages[-1].content[:3] }}")
    chat = [*CHATS["one"], {"role": "assistant", "content": "long answer"}]
    with pytest.raises(InvalidRequestError, match="cannot be continued") as caught:
        tokenizer.encode_chat(chat, add_generation_prompt=False, continue_final_message=True)
    assert caught.value.param == "continue_final_message"


def test_template_kwargs_reach_the_template(smollm_with: BuildTokenizer, oracle: Any) -> None:
    """enable_thinking changes what the template writes."""
    expected = oracle.apply_chat_template(
        CHATS["one"],
        chat_template=TEMPLATES["thinking"],
        add_generation_prompt=True,
        enable_thinking=False,
        return_dict=False,
    )
    tokenizer = smollm_with(TEMPLATES["thinking"])
    assert (
        tokenizer.encode_chat(CHATS["one"], template_kwargs={"enable_thinking": False}) == expected
    )
    assert tokenizer.encode_chat(CHATS["one"]) != expected


DOCUMENTS = [{"title": "A", "text": "<|im_end|> is text"}, {"title": "B", "text": "日本 12"}]


def test_documents_reach_a_template_that_shows_them(
    smollm_with: BuildTokenizer, oracle: Any
) -> None:
    """Control tokens in them stay text."""
    template = (
        "{% for d in documents or [] %}[{{ d.title }}]{{ d['text'] }}{% endfor %}"
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    tokenizer = smollm_with(template)
    expected = oracle.apply_chat_template(
        CHATS["one"], chat_template=template, documents=DOCUMENTS[1:], return_dict=False
    )
    got = tokenizer.encode_chat(CHATS["one"], documents=DOCUMENTS[1:], add_generation_prompt=False)
    assert got == expected
    both = tokenizer.encode_chat(CHATS["one"], documents=DOCUMENTS, add_generation_prompt=False)
    assert both.count(oracle.convert_tokens_to_ids("<|im_end|>")) == 1
    assert "<|im_end|> is text" in tokenizer.decode(both, skip_special_tokens=False)
    assert tokenizer.encode_chat(CHATS["one"], add_generation_prompt=False) != expected


def test_documents_are_refused_where_the_template_shows_none(smollm: HFTokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="shows no documents") as refused:
        smollm.encode_chat(CHATS["one"], documents=DOCUMENTS)
    assert refused.value.param == "documents"


def test_names_of_a_document_s_fields_are_plain(smollm_with: BuildTokenizer) -> None:
    tokenizer = smollm_with("{% for d in documents %}{{ d }}{% endfor %}")
    with pytest.raises(InvalidRequestError, match="letters, digits and _"):
        tokenizer.encode_chat(CHATS["one"], documents=[{"<|im_end|>": "a"}])


def test_no_documents_are_like_none(smollm: HFTokenizer) -> None:
    assert smollm.encode_chat(CHATS["one"], documents=[]) == smollm.encode_chat(CHATS["one"])


def test_without_a_template_chats_are_refused(sentencepiece_backend: Callable[[], Any]) -> None:
    """The message says what works instead."""
    tokenizer = HFTokenizer(sentencepiece_backend())
    assert not tokenizer.has_chat_template
    with pytest.raises(InvalidRequestError, match="no chat template"):
        tokenizer.encode_chat(CHATS["one"])


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].missing.field }}",
        "{{ messages[0].content + 1 }}",
        "{{ ''.__class__.__mro__ }}{{ ''.__class__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_what_a_template_cannot_do_ends_only_the_request(source: str) -> None:
    """Its own mistakes and what the sandbox forbids; the error shows no internals."""
    with pytest.raises(InvalidRequestError, match="cannot render these messages") as caught:
        _render(source)
    assert "/" not in str(caught.value)


def test_a_rendering_is_cut_off_at_its_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a template makes of the messages, memory is bounded."""
    monkeypatch.setattr(chat_template, "MAX_RENDERED_CHARS", 1000)
    assert len(_render("{% for i in range(10) %}{{ 'x' * 100 }}{% endfor %}")) == 1000
    with pytest.raises(InvalidRequestError, match="1000"):
        _render("{% for i in range(11) %}{{ 'x' * 100 }}{% endfor %}")


def test_a_template_that_is_not_jinja_is_refused_at_start() -> None:
    """With its line."""
    with pytest.raises(ConfigError, match="model-x is not valid, line 2"):
        ChatTemplate("fine\n{% if %}", {}, "model-x")


def test_templates_can_ask_for_the_date() -> None:
    """strftime_now, as in Llama 3's."""
    assert _render("{{ strftime_now('%Y') }}") in (
        str(datetime.now().year),
        str(datetime.now().year - 1),
    )


def _render(source: str) -> str:
    return ChatTemplate(source, {}, "test").render(
        CHATS["one"], add_generation_prompt=True, continuation_mark=None, template_kwargs={}
    )
