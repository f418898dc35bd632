"""Every field that a body accepts is used, or its type says that it is ignored."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from tokenmill.api.serving.reading import request_reading
from tokenmill.api.serving.reading.fields import ignored_fields

MESSAGES = [{"role": "user", "content": "a"}]
CHAT = {"messages": MESSAGES, "max_tokens": 2}
LOGPROBS = {"logprobs": True, "top_logprobs": 1}
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [{"prompt": "abc", "max_tokens": 2}],
    "/v1/chat/completions": [CHAT, CHAT | LOGPROBS],
    "/v1/responses": [{"input": "a", "max_output_tokens": 2}],
    "/v1/messages": [{"model": "simulated", **CHAT}],
    "/v1/messages/count_tokens": [{"model": "simulated", "messages": MESSAGES}],
    "/v1/embeddings": [{"input": "abc"}],
    "/tokenize": [{"prompt": "abc"}, {"messages": MESSAGES}],
    "/detokenize": [{"tokens": [97]}],
}


@pytest.mark.parametrize("path", BODIES)
def test_every_field_of_a_body_is_read_or_declared_as_ignored(
    http: httpx.Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = set()
    kinds: set[type] = set()
    decode = request_reading._decode

    def decode_watched(raw: bytearray, kind: type) -> tuple[Any, Any]:
        body, unknown = decode(raw, kind)
        kinds.add(kind)
        return watched(body, read), unknown

    monkeypatch.setattr(request_reading, "_decode", decode_watched)
    for body in BODIES[path]:
        for stream in (False, True) if path.startswith("/v1") and "input" not in body else (False,):
            answer = http.post(path, json=body | ({"stream": True} if stream else {}))
            assert answer.status_code in (200, 501), answer.text
    [kind] = kinds
    unread = set(kind.__struct_fields__) - read  # type: ignore[attr-defined]
    assert unread == ignored_fields(kind)


def watched(body: Any, read: set[str]) -> Any:
    """The same body, which notes the names of the fields that are read."""

    def note(self: Any, name: str) -> Any:
        read.add(name)
        return object.__getattribute__(self, name)

    kind = type(body)
    fields = {name: getattr(body, name) for name in kind.__struct_fields__}
    watching = msgspec.defstruct(
        kind.__name__, [], bases=(kind,), namespace={"__getattribute__": note}, kw_only=True
    )
    return watching(**fields)
