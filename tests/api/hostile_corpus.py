"""Hostile requests, for a test of what the server answers and a benchmark of how long it takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tokenmill.api.openai.reading.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)

JSON = {"content-type": "application/json"}
KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "/v1/completions": (CompletionBody, {"prompt": "abc", "max_tokens": 2}),
    "/v1/chat/completions": (
        ChatBody,
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    ),
    "/tokenize": (TokenizeBody, {"prompt": "abc"}),
    "/detokenize": (DetokenizeBody, {"tokens": [97]}),
}
VALUES = {
    "NaN": "NaN",
    "an infinite number": "1e999",
    "a number of 5,000 digits": "9" * 5000,
    "-2**63 - 1": str(-(2**63) - 1),
    "an object": '{"":{"a":[null]}}',
    "zeros and surrogates": r'"\u0000\ud800<|im_end|>"',
    "a long string": json.dumps("a\n" * 50_000),
    "a list in 500 lists": "[" * 500 + "]" * 500,
    "many objects": "[" + ",".join(["{}"] * 20_000) + "]",
}
"""JSON texts, some of them not valid, that each field gets."""
WHOLE = {
    "nothing": b"",
    "no end": b'{"prompt": "a',
    "not UTF-8": b'{"prompt": "\xff\xfe"}',
    "a list": b"[]",
    "a field twice": b'{"prompt": "a", "prompt": ["b"]}',
    "zeros": b"\x00" * 1000,
    "deep": b'{"x":' * 100_000,
    "5 MB": b"[" + b" " * 5_000_000 + b"]",
}
ID_LISTS = {
    "prompt": "[[-1], [1000], []]",
    "stop_token_ids": "[-1, 1000000]",
    "logit_bias": '{"1_0": 1, "-1": 0}',
    "stop": '["", "a"]',
    "n": "128",
    "tokens": "[1114112, -5]",
}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
TYPED = HEAD + b"Content-Type: application/json\r\n"
ANSWERED = {"HTTP/9": 200, "upgrade": 415}
"""The status of heads below for which it is not 400."""
RAW = {
    "two hosts": HEAD + b"Host: b\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "a bad length": TYPED + b"Content-Length: -1\r\n\r\n",
    "two lengths": TYPED + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "a bad chunk": TYPED + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "an odd encoding": TYPED + b"Transfer-Encoding: gzip\r\n\r\n{}",
    "a header with a line end": HEAD + b"X: a\rb\r\n\r\n",
    "HTTP/9": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "a path with bytes": b"GET /\xff\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "upgrade": HEAD + b"Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n",
}


def corpus() -> Iterator[tuple[str, str, bytes]]:
    """(name, path, body) of each request with a whole head."""
    for path, (kind, good) in KINDS.items():
        for name, body in WHOLE.items():
            yield f"{path}: {name}", path, body
        for field in kind.__struct_fields__:  # type: ignore[attr-defined]
            start = json.dumps({k: v for k, v in good.items() if k != field})[:-1]
            start += ", " if len(start) > 1 else ""
            texts = VALUES | ({"odd ids": ID_LISTS[field]} if field in ID_LISTS else {})
            for name, text in texts.items():
                yield f"{path}: {field} is {name}", path, f'{start}"{field}": {text}}}'.encode()
