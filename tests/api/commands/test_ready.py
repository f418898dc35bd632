"""What a server says when it is ready: facts, and commands that work with this model."""

from __future__ import annotations

import asyncio
import json
import shlex
from dataclasses import replace

import pytest

from tokenmill.api.commands.ready import (
    Ready,
    describe,
    ready_block,
    request_command,
    second_command,
)

from ..serving import toy_engine

READY = Ready(
    address="http://127.0.0.1:8000",
    model="it's mine",
    seconds=4.21,
    dtype="bfloat16",
    kv_cache_dtype="float8_e4m3fn",
    quantization="int4",
    max_model_len=8192,
    num_kv_tokens=46592,
    num_full_requests=5.7,
    device="cpu",
    attention_backend="cpu",
    linear_backend="cpu",
    has_chat_template=True,
    needs_key=False,
)


def words_of(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", ""))


def test_the_block_has_the_facts_and_fits_80_columns() -> None:
    text = ready_block(READY)
    for fact in ("it's mine", "bfloat16, weights in int4, KV cache in float8_e4m3fn",
                 "8,192 tokens", "46,592 tokens, 5.7 requests of full context",
                 "cpu (attention cpu, linear cpu)", "http://127.0.0.1:8000", "4.2 s"):  # fmt: skip
        assert fact in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_chat_model_gets_a_chat_request_and_a_chat() -> None:
    words = words_of(request_command(READY))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "it's mine" and body["messages"][0]["role"] == "user"
    assert words_of(second_command(READY)) == [
        "tokenmill", "chat", "--url", "http://127.0.0.1:8000"]  # fmt: skip


def test_a_model_without_a_chat_template_gets_a_completion_and_no_chat() -> None:
    ready = replace(READY, has_chat_template=False)
    words = words_of(request_command(ready))
    assert words[1].endswith("/v1/completions")
    assert "prompt" in json.loads(words[words.index("-d") + 1])
    assert words_of(second_command(ready)) == ["curl", "http://127.0.0.1:8000/v1/models"]


@pytest.mark.parametrize("has_chat_template", [True, False])
def test_with_an_api_key_both_commands_send_one(has_chat_template: bool) -> None:
    ready = replace(READY, needs_key=True, has_chat_template=has_chat_template)
    header = ["-H", "Authorization: Bearer YOUR_KEY"]
    words = words_of(request_command(ready))
    assert words[2:4] == header
    second = words_of(second_command(ready))
    assert second[-2:] == (["--api-key", "YOUR_KEY"] if has_chat_template else header)


def test_a_unix_socket_is_reached_by_curl_alone() -> None:
    ready = replace(READY, address="unix:/tmp/a b.sock")
    for command in (request_command(ready), second_command(ready)):
        assert words_of(command)[:3] == ["curl", "--unix-socket", "/tmp/a b.sock"]
        assert words_of(command)[3].startswith("http://localhost/v1/")


def test_the_facts_are_those_of_the_engine() -> None:
    async def found() -> Ready:
        async with toy_engine(max_model_len=100) as engine:
            return describe(engine, "http://a", 1.26, needs_key=False)

    ready = asyncio.run(found())
    assert (ready.num_kv_tokens, ready.max_model_len) == (1024, 100)
    assert ready.num_full_requests == 10.2  # 256 blocks, and 25 of them per request
    assert ready.fields.keys() >= {"address", "model", "seconds"} and ready.seconds == 1.3
