"""Images in tool results. An image that the chat template does not show is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.serving import Served, serve_engine
from tests.api.test_errors import check_error
from tests.oracle.image_reference import ImageReference
from tests.oracle.tiny_smolvlm import TEMPLATE, png
from tokenmill.assembly import AsyncEngine

from .calls import CHAT, MESSAGES, ONE, RESPONSES, TWO, data_url, image_part, in_base64, text

WORDS = "Look at "
SHOWN = TEMPLATE.replace("{{message['role']", "{{message.tool_calls}}{{message['role']", 1)
"""A template that shows tool calls. It shows tool results like all other messages."""
ONLY_USERS = SHOWN.replace(
    "== 'image' %}{{ '<image>'", "== 'image' and message.role == 'user' %}{{ '<image>'"
)
"""A template that shows images only in messages of users."""


def chat_body(*parts: dict[str, Any]) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return {
        "messages": [
            {"role": "user", "content": [text(WORDS), image_part(ONE)]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": list(parts)},
        ],
        "max_tokens": 4,
    }


def responses_body(*outputs: dict[str, Any]) -> dict[str, Any]:
    question = [
        {"type": "input_text", "text": WORDS},
        {"type": "input_image", "image_url": data_url(ONE)},
    ]
    return {
        "input": [
            {"role": "user", "content": question},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": list(outputs)},
        ],
        "max_output_tokens": 16,
    }


def anthropic_image(image: Any) -> dict[str, Any]:
    data = in_base64(png(image))
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def messages_body(*blocks: dict[str, Any]) -> dict[str, Any]:
    call = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": list(blocks)}
    turns = [
        {"role": "user", "content": [text(WORDS), anthropic_image(ONE)]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    return {"model": "tiny", "messages": turns, "max_tokens": 4}


def bodies() -> Iterator[tuple[str, dict[str, Any], str]]:
    """Path and body of calls whose tool answers with a text and an image, and the image's place."""
    yield CHAT, chat_body(text("A cat: "), image_part(TWO)), "messages[2].content[1]"
    outputs = (
        {"type": "input_text", "text": "A cat: "},
        {
            "type": "input_image",
            "image_url": data_url(TWO),
        },
    )
    yield RESPONSES, responses_body(*outputs), "input[2].output[1]"
    blocks = text("A cat: "), anthropic_image(TWO)
    yield MESSAGES, messages_body(*blocks), "messages[2].content[0].content[1]"


def num_tokens(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    usage: dict[str, int] = answer.json()["usage"]
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"]
    return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)


def test_results_that_become_a_message_of_the_user_keep_their_images(
    http: httpx.Client, reference: ImageReference
) -> None:
    """The template of SmolVLM does not support tools."""
    user, said, result = chat_body(text("A cat: "), image_part(TWO))["messages"]
    answer = http.post(
        "/tokenize", json={"messages": [user, said, result, {"role": "user", "content": "So?"}]}
    )
    written = http.post("/detokenize", json={"tokens": answer.json()["tokens"]}).json()["prompt"]
    before, _, after = written.partition("Result of look:\n")
    call = before.partition("Assistant:")[2].partition("<end_of_utterance>")[0].strip()
    assert "look" in call and after.endswith("So?<end_of_utterance>\nAssistant:")
    image = {"type": "image"}
    turns = [
        {"role": "user", "content": [text(WORDS), image]},
        {"role": "assistant", "content": [text(call)]},
        {
            "role": "user",
            "content": [text("Result of look:\nA cat: "), image, text("\n\nSo?")],
        },
    ]
    expected, _ = reference.answer(turns, [ONE, TWO], 1)
    assert answer.json()["tokens"] == expected


def test_all_three_apis_show_images_in_tool_results(http: httpx.Client) -> None:
    counts = {num_tokens(http.post(path, json=body)) for path, body, _ in bodies()}
    assert len(counts) == 1


@pytest.fixture(params=[SHOWN, ONLY_USERS], ids=["shown", "only-users"])
def served(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "template.jinja").write_text(request.param)
    engine = AsyncEngine(
        str(folder),
        dtype="float32",
        num_gpu_blocks_override=64,
        disable_log_stats=True,
        chat_template=str(tmp_path / "template.jinja"),
        served_model_name="tiny",
    )
    with serve_engine(engine) as served:
        yield served


def test_the_template_decides_whether_a_result_shows_images(
    served: Served, request: pytest.FixtureRequest
) -> None:
    is_shown = "only-users" not in request.node.name
    with served.client() as http:
        for path, body, place in bodies():
            answer = http.post(path, json=body)
            if is_shown:
                assert num_tokens(answer) > 2 * 17 * 4, path
                continue
            assert answer.status_code == 400
            assert answer.json()["error"]["message"] == (
                f"{place}: the model's chat template shows no images in this message"
            )
            if path != MESSAGES:  # whose errors have no param
                check_error(answer, 400, place)
