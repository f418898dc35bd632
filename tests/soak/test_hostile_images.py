"""Many hostile images over HTTP harm only the process that decodes them."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.images.calls import CHAT, in_base64, text
from tests.backends.media.image_files import files
from tests.backends.media.test_hostile_files import (
    BOMBS,
    HUGE,
    WORDS_OF_LIBRARIES,
    gif_of,
    mutated,
    png_with,
    with_right_sums,
)
from tests.oracle.tiny_smolvlm import picture, png, write_model
from tests.server_process import RunningServer, running_server

from .watching import children, rss

NUM_FILES = int(os.environ.get("TOKENMILL_SOAK_FILES", "20000"))
WARM_UP = 1000
AT_ONCE = 8
BATCH = 100
"""Number of files between two requests of another client."""
LOST_MB = 64
DECODER = "backends.media.worker"
"""A part of the command line of the process that decodes."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    model = write_model(tmp_path / "model")
    flags = ("--model", str(model), "--served-model-name", "tiny", "--dtype", "float32")
    with running_server(tmp_path, *flags, "--mm-processor-cache-gb", "0.01") as server:
        yield server


def chat(*parts: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "user", "content": list(parts)}
    return {"messages": [message], "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": f"data:image/png;base64,{in_base64(data)}"}


NEIGHBOURS = (chat(text("Once")), chat(image(png(picture(1, 60, 50))), text("What?")))


def answers(http: httpx.Client) -> list[str]:
    """The answers that the other clients get."""
    found = [http.post(CHAT, json=body) for body in NEIGHBOURS]
    assert [one.status_code for one in found] == [200, 200], found[-1].text
    return [one.json()["choices"][0]["message"]["content"] for one in found]


def special() -> Iterator[bytes]:
    """Bombs, huge attachments, 10,000 frames, and what CVE-2026-22773 and CVE-2026-22778 sent: one
    pixel, and bytes whose error message holds an address."""
    yield from (make() for make in (*BOMBS.values(), *HUGE.values()))
    yield gif_of(10_240)
    yield png(picture(0, 1, 1))
    yield png_with()[:40]
    yield b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(1000)
    yield b"\xff\xd8\xff" + b"\xff" * 1000


def mutations(number: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    sound = [file.data for file in files(46)]
    for _ in range(number):
        data = mutated(rng.choice(sound), rng)
        yield with_right_sums(data) if data[:4] == b"\x89PNG" else data


def memory(server: RunningServer) -> float:
    """MB of the server and its engine, without the decoder, which is replaced when it dies."""
    own = server.process.pid
    return rss(own) + sum(rss(pid) for pid in lasting(own))


def lasting(pid: int) -> set[int]:
    """The server's children that must not die."""
    found = children(pid)
    return {one for one in found if DECODER not in Path(f"/proc/{one}/cmdline").read_text()}


def test_hostile_images_end_nothing_but_decoders(server: RunningServer) -> None:
    statuses: Counter[int] = Counter()
    with (
        httpx.Client(base_url=server.url, timeout=180, trust_env=False) as http,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        expected = answers(http)

        def send(data: bytes) -> int:
            answer = http.post(CHAT, json=chat(image(data)) | {"max_tokens": 1})
            if answer.status_code == 400:
                error = answer.json()["error"]
                assert error["param"] == "messages[0].content[0]"
                words = error["message"].removeprefix(error["param"])
                assert not [word for word in WORDS_OF_LIBRARIES if word in words], words
            return answer.status_code

        def send_all(found: Iterator[bytes]) -> None:
            for at, status in enumerate(pool.map(send, found)):
                statuses[status] += 1
                if at % BATCH == 0:
                    assert answers(http) == expected

        send_all(mutations(WARM_UP, 0))
        send_all(special())
        processes, before = lasting(server.process.pid), memory(server)
        assert processes, "the engine has a process of its own"
        for seed in range(1, 1 + NUM_FILES // WARM_UP):
            send_all(mutations(WARM_UP, seed))
            send_all(special())
        assert answers(http) == expected
    print(f"statuses: {dict(statuses)}, memory: {before:.0f} MB and {memory(server):.0f} MB")
    assert statuses.keys() <= {200, 400, 413, 503}
    assert min(statuses[200], statuses[400]) > NUM_FILES // 20, "the mutations do too little"
    assert lasting(server.process.pid) == processes and server.process.poll() is None
    assert memory(server) < before + LOST_MB
