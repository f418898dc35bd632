"""An unchanged vllm-router in front of two servers: answers, streams, and a lost server."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from ...server_process import RunningServer, running_server
from .conftest import Target
from .environments import client_environment, python_with

ROUTER = "vllm-router==0.1.17"
PATIENCE = 60.0
GENERATED = "tokenmill:generation_tokens_total"


@contextlib.contextmanager
def router(folder: Path, *urls: str) -> Iterator[str]:
    """The address of a router in front of servers. It checks their health every second."""
    port, metrics_port = free_port(), free_port()
    command = [
        str(python_with(ROUTER).with_name("vllm-router")),
        *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port)),
        *("--policy", "cache_aware", "--health-check-interval-secs", "1"),
        *("--health-failure-threshold", "1"),
        *("--worker-urls", *urls),
    ]
    log = folder / "router.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=client_environment())
    try:
        yield f"http://127.0.0.1:{port}"
    except BaseException as error:
        error.add_note(log.read_text()[-4000:])
        raise
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def ask(http: httpx.Client, target: Target, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": target.arguments[2]}]
    body = {"model": target.model, "messages": messages, "max_tokens": 16, "temperature": 0}
    return http.post("/v1/chat/completions", json=body | fields)


def wait_until_answered(http: httpx.Client, target: Target) -> None:
    """Wait until the router knows which servers it can use."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if ask(http, target).status_code == 200:
                return
        time.sleep(0.2)
    raise AssertionError("the router gives no answer")


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def num_generated(server: RunningServer) -> float:
    """Tokens that a server has generated."""
    text = httpx.get(f"{server.url}/metrics", trust_env=False).text
    lines = (line for line in text.splitlines() if line.startswith(GENERATED))
    return sum(float(line.split()[-1]) for line in lines)


def test_it_answers_and_streams_and_uses_the_other_server_when_one_is_lost(
    target: Target, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        servers = []
        for name in ("first", "second"):
            (folder := tmp_path / name).mkdir()
            servers.append(stack.enter_context(running_server(folder, "--dtype", "float32")))
        url = stack.enter_context(router(tmp_path, *(server.url for server in servers)))
        http = stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False))
        wait_until_answered(http, target)
        for _ in range(4):
            assert text_of(ask(http, target)) == target.text
        events = ask(http, target, stream=True).text.split("\n\n")
        assert sum('"delta"' in event for event in events) >= 16
        assert events[-2] == "data: [DONE]"

        used, other = sorted(servers, key=num_generated, reverse=True)
        used.process.kill()
        used.process.wait()
        wait_until_answered(http, target)
        before = num_generated(other)
        for _ in range(4):
            assert text_of(ask(http, target)) == target.text
        assert num_generated(other) == before + 4 * 16
