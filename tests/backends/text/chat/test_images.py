"""Chats with images: templates see parts, and write a placeholder for each image and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.oracle import tiny_gemma3
from tests.oracle.tiny_smolvlm import IMAGE, TEMPLATE, write_tokenizer
from tokenmill.backends.text.chat.given_template import GivenTemplate
from tokenmill.backends.text.chat.messages import ContentForm
from tokenmill.backends.text.chat.template import ChatTemplate
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.text.tokenizer import HFTokenizer
from tokenmill.core.errors import InvalidRequestError

GEMMA = """{{ bos_token }}{%- for message in messages -%}
{{ '<start_of_turn>' + message['role'] + '\n' }}
{%- if message['content'] is string -%}{{ message['content'] | trim }}
{%- elif message['content'] is iterable -%}{%- for item in message['content'] -%}
{%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}
{%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
{{ '<end_of_turn>\n' }}{%- endfor -%}"""
"""A part of Gemma 3's template: it shows texts, too."""
QWEN = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}<|im_end|>
{% else %}{% for content in message['content'] %}
{%- if content['type'] == 'image' or 'image' in content or 'image_url' in content -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif 'text' in content -%}{{ content['text'] }}{%- endif -%}
{% endfor %}<|im_end|>
{% endif %}{% endfor %}"""
TEXT_PARTS = """{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}
{%- for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}
{%- endif %}{% endfor %}{# image #}"""
STRINGS = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"
MENTIONS = "{% for m in messages %}{{ m['content'] }}{{ 'image' if false }}{% endfor %}"
FORMS = {
    TEMPLATE: ContentForm(shows_images=True, needs_parts=True),
    GEMMA: ContentForm(shows_images=True),
    QWEN: ContentForm(shows_images=True),
    TEXT_PARTS: ContentForm(),
    STRINGS: ContentForm(),
    MENTIONS: ContentForm(),
}


@pytest.fixture
def tokenizer(tmp_path: Path) -> HFTokenizer:
    write_tokenizer(tmp_path)
    return load_tokenizer(tmp_path)


@pytest.mark.parametrize("source", FORMS, ids=range(len(FORMS)))
def test_what_a_template_shows_is_found_out(source: str) -> None:
    assert ChatTemplate(source, {"bos_token": "<bos>"}, "model").form == FORMS[source]


RESULTS = {
    "{{ '<tool>' + m.content + '</tool>' }}": ContentForm(),
    "{{ m.content | string }}": ContentForm(),
    "{{ raise_exception('no tools') }}": ContentForm(),
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{{ c.text }}{% endfor %}{% endif %}": ContentForm(),
    "{{ m.tool_call_id }}{% for c in m.content %}{{ c.text or '<image>' }}{% endfor %}": (
        ContentForm(shows_images=True, needs_parts=True)
    ),
}
"""How templates write results of tools, and which contents they show there."""


@pytest.mark.parametrize("written", RESULTS)
def test_results_of_tools_have_a_form_of_their_own(tmp_path: Path, written: str) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'tool' %}" + written + "{% elif m.tool_calls %}"
        "{{ m.tool_calls[0].function.name }}{% else %}{% for c in m.content %}"
        "{{ '<image>' if c.type == 'image' else c.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    form = RESULTS[written]
    made = ChatTemplate(template, {}, "model")
    assert made.form == ContentForm(shows_images=True, needs_parts=True)
    assert made.result_form == form
    write_tokenizer(tmp_path, template=template)
    tokenizer, image = load_tokenizer(tmp_path), {"type": "image"}

    def chat(*parts: dict[str, Any]) -> list[dict[str, Any]]:
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "content": list(parts), "tool_call_id": "c"}
        return [{"role": "user", "content": [image]}, said, result]

    text = {"type": "text", "text": "A cat."}
    if "raise" not in written:
        rendered = tokenizer.decode(tokenizer.encode_chat(chat(text)), skip_special_tokens=False)
        assert "A cat." in rendered and "{" not in rendered
    if form.shows_images:
        (placeholder,) = tokenizer.encode(IMAGE)
        assert tokenizer.encode_chat(chat(text, image)).count(placeholder) == 2
        return
    with pytest.raises(InvalidRequestError) as caught:
        tokenizer.encode_chat(chat(text, image))
    assert caught.value.param == "messages[2].content[1]"


CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    [{"role": "user", "content": [{"type": "text", "text": t} for t in ("a", "\n\n", "b")]}],
    [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " image "}]},
        {"role": "assistant", "content": [{"type": "text", "text": "text"}]},
        {"role": "user", "content": [{"type": "text", "text": "And?"}, {"type": "image"}]},
    ],
]


@pytest.mark.parametrize("chat", CHATS, ids=range(len(CHATS)))
def test_parts_are_rendered_as_by_transformers(
    tmp_path: Path, tokenizer: HFTokenizer, chat: list[dict[str, Any]]
) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert tokenizer.encode_chat(chat) == expected


def test_a_text_is_shown_by_a_template_that_needs_parts(tokenizer: HFTokenizer) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    text = [{"role": "user", "content": "Hi"}]
    assert tokenizer.encode_chat(text) == tokenizer.encode_chat(parts)
    assert "Hi" in tokenizer.decode(tokenizer.encode_chat(text))


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_text_never_becomes_a_placeholder(tokenizer: HFTokenizer, role: str) -> None:
    (placeholder,) = tokenizer.encode(IMAGE)
    for text in (IMAGE, f"a{IMAGE}{IMAGE}b", "<image", "image>", "image"):
        for content in (text, [{"type": "text", "text": text}]):
            token_ids = tokenizer.encode_chat([{"role": role, "content": content}])
            assert placeholder not in token_ids
            assert text in tokenizer.decode(token_ids, skip_special_tokens=False)


def test_a_token_that_is_not_special_is_no_placeholder_either(tmp_path: Path) -> None:
    """The text of an assistant keeps other such tokens, as <think>."""
    tokenizer = write_tokenizer(tmp_path, marks_special=False)
    (placeholder,) = tokenizer.encode(IMAGE)
    ours = load_tokenizer(tmp_path, GivenTemplate(text=TEMPLATE, name="own"))
    assert placeholder not in ours.encode_chat([{"role": "assistant", "content": IMAGE}])
    (image,) = ([{"role": "user", "content": [{"type": "image"}]}],)
    assert ours.encode_chat(image).count(placeholder) == 1


@pytest.fixture
def gemma3(tmp_path: Path) -> HFTokenizer:
    write_tokenizer(tmp_path, special=tiny_gemma3.SPECIAL, template=tiny_gemma3.TEMPLATE)
    return load_tokenizer(tmp_path)


def test_blank_lines_of_gemma_3_join_the_ends_of_lines_beside_an_image(
    gemma3: HFTokenizer,
) -> None:
    """They are one token, which the tokens of an image alone cannot show."""
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a"}]}]
    shown = "<start_of_turn>user\n\n\n<start_of_image>\n\na<end_of_turn>\n<start_of_turn>model\n"
    assert gemma3.encode_chat(chat) == gemma3.encode(shown)
    (three,) = gemma3.encode("\n\n\n")
    assert three in gemma3.encode_chat(chat)


@pytest.mark.parametrize("with_image", [True, False])
def test_text_never_becomes_an_image_of_gemma_3(gemma3: HFTokenizer, with_image: bool) -> None:
    special = {gemma3.encode(text)[0] for text in tiny_gemma3.SPECIAL[3:]}
    for text in (*tiny_gemma3.SPECIAL[3:], "a<start_of_image>\n\nb", "start_of_image>", "<start"):
        parts: list[Any] = [{"type": "text", "text": text}]
        image: list[Any] = [{"type": "image"}] * with_image
        for content in (image + parts, parts + image):
            token_ids = gemma3.encode_chat([{"role": "user", "content": content}])
            assert sum(token_id in special for token_id in token_ids) == with_image
            assert text in gemma3.decode(token_ids, skip_special_tokens=False)


def test_a_prompt_of_text_gets_blank_lines_only_for_its_images(gemma3: HFTokenizer) -> None:
    assert gemma3.frame_images("a<start_of_image>b") == "a\n\n<start_of_image>\n\nb"
    assert gemma3.frame_images("a") == "a"
    assert gemma3.decode(gemma3.encode("<start_of_image>"), skip_special_tokens=False) == (
        "<start_of_image>"
    )


def test_a_message_that_ends_with_text_can_be_continued(tokenizer: HFTokenizer) -> None:
    options: Any = {"add_generation_prompt": False, "continue_final_message": True}
    parts = [{"type": "image"}, {"type": "text", "text": "I see"}]
    chat: list[Any] = [{"role": "assistant", "content": parts}]
    assert tokenizer.decode(tokenizer.encode_chat(chat, **options)).endswith("I see")
    chat[0]["content"] = parts[:1]
    with pytest.raises(InvalidRequestError, match="no content that ends with text"):
        tokenizer.encode_chat(chat, **options)


def test_a_template_without_images_refuses_them(smollm: HFTokenizer) -> None:
    chat = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]
    with pytest.raises(InvalidRequestError, match="shows no images") as caught:
        smollm.encode_chat(chat)
    assert caught.value.param == "messages[0].content[1]"
