"""Hostile bodies of 4 MB that are valid JSON, for a test of the event loop and a benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

SIZE = 4_000_000
USER = {"role": "user", "content": "a"}
BASES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [USER], "max_tokens": 2},
    "/v1/responses": {"input": "abc", "max_output_tokens": 16},
    "/v1/messages": {"model": "simulated", "messages": [USER], "max_tokens": 2},
    "/v1/embeddings": {"input": "abc"},
    "/tokenize": {"prompt": "abc"},
    "/detokenize": {"tokens": [97]},
}
PART = '{"type":"text","text":"a"},'
TURN = '{"role":"user","content":"a"},'
LISTS, OBJECTS, NAMED = "[],", '{"a":{}},', '"a{}":[],'


def many(piece: str, size: int) -> str:
    """Pieces with a comma at their end, numbered if they want a number, joined to about `size`."""
    if "{}" in piece and piece.startswith('"'):
        num = size // (len(piece) + 4)
        return "".join(f"{piece[:-4].replace('{}', str(n))}{piece[-4:]}" for n in range(num))[:-1]
    return (piece * (size // len(piece)))[:-1]


def in_list(piece: str, size: int = SIZE) -> str:
    return f"[{many(piece, size)}]"


def in_object(piece: str = NAMED, size: int = SIZE) -> str:
    return f"{{{many(piece, size)}}}"


def chat_tool(parameters: str) -> str:
    return f'[{{"type":"function","function":{{"name":"f","parameters":{parameters}}}}}]'


FIELDS: list[tuple[str, str, Callable[[], str]]] = [
    ("/v1/completions", "prompt", lambda: in_list("1,")),
    ("/v1/completions", "prompt", lambda: in_list("97,")),
    ("/v1/completions", "prompt", lambda: in_list("[97,98],")),
    ("/v1/completions", "prompt", lambda: in_list("[],")),
    ("/v1/completions", "prompt", lambda: in_list('"a",')),
    ("/v1/completions", "prompt", lambda: json.dumps("a b" * (SIZE // 3))),
    ("/v1/completions", "prompt", lambda: json.dumps('{"a":[1]},' * (SIZE // 12))),
    ("/v1/completions", "vllm_xargs", in_object),
    ("/v1/completions", "vllm_xargs", lambda: f'{{"a":{in_list(LISTS)}}}'),
    ("/v1/completions", "logit_bias", lambda: in_object('"{}":1,')),
    ("/v1/completions", "stop", lambda: in_list('"a",')),
    ("/v1/completions", "bad_words", lambda: in_list('"a",')),
    ("/v1/completions", "allowed_token_ids", lambda: in_list("97,")),
    ("/v1/completions", "metadata", lambda: in_object('"{}":"a",')),
    ("/v1/completions", "guided_json", in_object),
    ("/v1/completions", "guided_choice", lambda: in_list('"a",')),
    ("/v1/completions", "structured_outputs", lambda: f'{{"json":{in_object()}}}'),
    ("/v1/completions", "unknown", lambda: in_list(OBJECTS)),
    ("/v1/completions", "unknown", lambda: f'1,{many(NAMED, SIZE)}'),
    ("/v1/completions", "n", lambda: '1,' + many('"n":1,', SIZE)),
    ("/v1/chat/completions", "tools", lambda: in_list(LISTS)),
    ("/v1/chat/completions", "tools", lambda: chat_tool(in_object())),
    ("/v1/chat/completions", "tools", lambda: chat_tool(f'{{"enum":{in_list(LISTS)}}}')),
    ("/v1/chat/completions", "messages", lambda: in_list(TURN)),
    ("/v1/chat/completions", "messages", lambda: in_list('{"role":""},')),
    (
        "/v1/chat/completions",
        "messages",
        lambda: f'[{{"role":"user","content":{in_list(PART)}}}]',
    ),
    (
        "/v1/chat/completions",
        "messages",
        lambda: f'[{{"role":"assistant","content":"a","tool_calls":{in_list(LISTS)}}}]',
    ),
    ("/v1/chat/completions", "messages",
     lambda: f'[{{"role":"user","content":"a",{many(NAMED, SIZE)}}}]'),
    ("/v1/chat/completions", "chat_template_kwargs", in_object),
    ("/v1/chat/completions", "documents", lambda: in_list('{"a":"b"},')),
    ("/v1/chat/completions", "response_format",
     lambda: f'{{"type":"json_schema","json_schema":{{"name":"a","schema":{in_object()}}}}}'),
    ("/v1/chat/completions", "prompt_cache_options", in_object),
    ("/v1/responses", "input", lambda: in_list(TURN)),
    ("/v1/responses", "tools",
     lambda: f'[{{"type":"function","name":"f","parameters":{in_object()}}}]'),
    ("/v1/responses", "text",
     lambda: f'{{"format":{{"type":"json_schema","name":"a","schema":{in_object()}}}}}'),
    ("/v1/messages", "messages", lambda: in_list(TURN)),
    (
        "/v1/messages",
        "messages",
        lambda: '[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":'
        f'{in_object()}}}]}}]',
    ),
    ("/v1/messages", "tools", lambda: f'[{{"name":"f","input_schema":{in_object()}}}]'),
    ("/v1/embeddings", "input", lambda: in_list("97,")),
    ("/v1/embeddings", "input", lambda: in_list('"a",')),
    ("/tokenize", "prompt", lambda: json.dumps("a b" * (SIZE // 3))),
    ("/tokenize", "tools", lambda: chat_tool(in_object())),
    ("/detokenize", "tokens", lambda: in_list("97,")),
    # As large as the limits allow
    ("/detokenize", "tokens", lambda: in_list("1,", 2_000_000)),
    ("/v1/completions", "prompt", lambda: in_list("97,", 3_000_000)),
    ("/v1/completions", "prompt", lambda: in_list("[97],", 300_000)),
    ("/v1/completions", "prompt", lambda: in_list('"a",', 500_000)),
    ("/v1/completions", "vllm_xargs", lambda: in_object(size=15_000)),
    ("/v1/completions", "allowed_token_ids", lambda: in_list("97,", 390_000)),
    ("/v1/completions", "guided_json", lambda: in_object(size=120_000)),
    ("/v1/completions", "structured_outputs",
     lambda: '{"disable_additional_properties":true,"json":{"properties":'
     f'{in_object(size=120_000)}}}}}'),
    ("/v1/completions", "guided_choice", lambda: in_list('"a",', 120_000)),
    ("/v1/chat/completions", "tools", lambda: chat_tool(in_object(size=500_000))),
    ("/v1/chat/completions", "tools",
     lambda: chat_tool(f'{{"enum":{in_list(LISTS, 190_000)}}}')),
    ("/v1/chat/completions", "messages", lambda: in_list(TURN, 490_000)),
    ("/v1/chat/completions", "messages",
     lambda: f'[{{"role":"assistant","content":"a","tool_calls":{in_list(LISTS, 190_000)}}}]'),
    ("/v1/chat/completions", "chat_template_kwargs", lambda: in_object(size=60_000)),
    ("/v1/responses", "input", lambda: in_list(TURN, 490_000)),
    ("/v1/responses", "input",
     lambda: f'[{{"role":"user","content":{in_list(PART, 20_000)}}},'
     + in_list(TURN, 400_000)[1:]),
    ("/v1/messages", "messages", lambda: in_list(TURN, 490_000)),
    ("/v1/messages", "tools",
     lambda: f'[{{"name":"f","input_schema":{in_object(size=500_000)}}}]'),
    ("/v1/messages", "messages",
     lambda: f'[{TURN}{{"role":"assistant","content":[{{"type":"tool_use","id":"a",'
     f'"name":"f","input":{in_object(size=700_000)}}}]}}]'),
    ("/v1/embeddings", "input", lambda: in_list("97,", 3_000_000)),
    ("/v1/embeddings", "input", lambda: in_list('"a",', 500_000)),
]  # fmt: skip


def large_bodies(every: int = 1) -> Iterator[tuple[str, str, bytes]]:
    """(name, path, body) of each, or of every N-th."""
    for number, (path, field, make) in enumerate(FIELDS):
        if number % every:
            continue
        rest = json.dumps({k: v for k, v in BASES[path].items() if k != field})[1:]
        comma = "" if rest == "}" else ", "
        body = f'{{"{field}": {make()}{comma}{rest}'.encode()
        yield f"{number} {path} {field}", path, body
