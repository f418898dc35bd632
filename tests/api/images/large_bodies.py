"""Bodies of up to 20 MiB with images, for tests of the event loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from .calls import CHAT, MESSAGES, RESPONSES, in_base64, text

ALONE = 11 << 20
"""Size of a file in bytes. A body with the file has about 15 MiB."""
TOGETHER = 13 << 20
Parts = Sequence[Any]


def _urls(files: Sequence[str]) -> Parts:
    return [{"type": "image_url", "image_url": f"data:image/png;base64,{file}"} for file in files]


def _items(files: Sequence[str]) -> Parts:
    return [{"type": "input_image", "image_url": f"data:;base64,{file}"} for file in files]


def _blocks(files: Sequence[str]) -> Parts:
    sources = [{"type": "base64", "media_type": "image/png", "data": file} for file in files]
    return [{"type": "image", "source": source} for source in sources]


def _chat(parts: Parts) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 2}


def _response(parts: Parts) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": parts}], "max_output_tokens": 16}


def _message(parts: Parts) -> dict[str, Any]:
    return {"model": "tiny"} | _chat(parts)


def _tool_result(parts: Parts) -> dict[str, Any]:
    return _message([{"type": "tool_result", "tool_use_id": "a", "content": parts}])


def _tokenize(parts: Parts) -> dict[str, Any]:
    return {"messages": _chat(parts)["messages"]}


FORMS: list[tuple[str, Callable[[Parts], dict[str, Any]], Callable[[Sequence[str]], Parts]]] = [
    (CHAT, _chat, _urls),
    (RESPONSES, _response, _items),
    (MESSAGES, _message, _blocks),
    (MESSAGES, _tool_result, _blocks),
    ("/tokenize", _tokenize, _urls),
]


def large_bodies(photos: Sequence[bytes], every: int = 1) -> Iterator[tuple[str, str, bytes, int]]:
    """Name, path, body and expected status of each, or of every N-th. `photos`: files that the
    model reads, as many as one prompt may have."""

    def padded(data: bytes, size: int) -> str:
        return in_base64(data + bytes(size - len(data)))

    alone = padded(photos[0], ALONE)
    together = [padded(photo, TOGETHER // len(photos)) for photo in photos]
    broken: dict[str, Callable[[], Parts]] = {
        "broken at its end": lambda: _urls([alone[:-5] + "!!!!="]),
        "not ASCII": lambda: _urls(["é" * (9 << 20)]),
        "escaped": lambda: _urls(["/\n" * (5 << 20)]),
        "padding in the middle": lambda: _urls(["AA==" * (4 << 20)]),
        "no comma": lambda: [{"type": "image_url", "image_url": "data:" + "a" * (18 << 20)}],
        "small ones": lambda: [text("a"), *_urls(["AAAA"] * 200_000)],
        "names": lambda: [{"type": "image_url", "uuid": str(n)} for n in range(30_000)],
    }
    cases: list[tuple[str, str, Callable[[], dict[str, Any]], int]] = [
        (f"{path} {body.__name__} {len(files)}", path, partial(_made, body, parts, files), 200)
        for files in ([alone], together)
        for path, body, parts in FORMS
    ]
    cases += [(name, CHAT, partial(_made, _chat, make), 400) for name, make in broken.items()]
    for name, path, make, status in cases[::every]:
        yield name, path, json.dumps(make(), ensure_ascii=False).encode(), status


def _made(body: Callable[[Parts], dict[str, Any]], parts: Callable[..., Parts], *files: Any) -> Any:
    return body(parts(*files))
