"""One server with the real model, which all clients of this folder call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from ...server_process import running_server

PROMPT = "Tell me about the sea."


@dataclass(frozen=True, slots=True)
class Target:
    """The server's address and model, and its greedy answer of 16 tokens to PROMPT."""

    url: str
    model: str
    text: str

    @property
    def arguments(self) -> tuple[str, str, str]:
        return self.url, self.model, PROMPT


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("clients")
    with running_server(
        folder, "--dtype", "float32", "--strict-fields", "--route", "ollama"
    ) as server:
        with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http:
            model = http.get("/v1/models").json()["data"][0]["id"]
            messages = [{"role": "user", "content": PROMPT}]
            ask = {"model": model, "messages": messages, "max_tokens": 16, "temperature": 0}
            answer = http.post("/v1/chat/completions", json=ask).json()
        yield Target(server.url, model, answer["choices"][0]["message"]["content"])
