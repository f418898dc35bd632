"""Causes of slow requests, planted on a server with the real model, and what the server says."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.soak.calling import SMALL_WINDOW, Call
from tests.test_worker_restarts import workers_of
from tokenmill.bench.client import Server
from tokenmill.bench.endpoints import Completions
from tokenmill.bench.prompts import Prompt
from tokenmill.bench.running import Answer, Load, run
from tokenmill.core.shell.served import LOST, READING

from .server_process import RunningServer, running_server

KEY = "sk-admin"
ADMIN = {"Authorization": f"Bearer {KEY}"}
PATIENCE = 120.0
NUM_BLOCKS = 64
"""Of 16 tokens. Few, so that one request can fill them."""
FLAGS = ("--admin-key", KEY, "--max-engine-restarts", "100")
SLOW_PLUGIN = """
import time
from tokenmill.core.contract.hookspecs import hookimpl

TOKENMILL_API = (1, 1)

@hookimpl(wrapper=True)
def schedule(step):
    time.sleep(0.2)
    return (yield)
"""


@contextmanager
def explaining_server(folder: Path, *flags: str, num_blocks: int = NUM_BLOCKS) -> Iterator[Asker]:
    """A server whose admin may ask why a request was slow."""
    blocks = ("--num-gpu-blocks-override", str(num_blocks))
    with (
        running_server(folder, *FLAGS, *blocks, *flags, packages=folder) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE) as http,
    ):
        yield Asker(server, http)


def install_slow_plugin(folder: Path) -> tuple[str, ...]:
    """Install a plugin that thinks before each step. Return the flags that enable it."""
    (folder / "slow.py").write_text(SLOW_PLUGIN)
    info = folder / "slow-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tokenmill.plugins]\nslow = slow\n")
    (folder / "plugins.toml").write_text('[plugins]\nenable = ["slow"]\n')
    return "--plugins-file", str(folder / "plugins.toml")


def words(count: int) -> str:
    """A prompt of about `count` tokens that no request had before."""
    return " ".join(random.choices(("river", "stone", "cloud", "light", "green"), k=count))


@dataclass(frozen=True, slots=True)
class Asker:
    """A client of a server."""

    server: RunningServer
    http: httpx.Client

    def start(self, name: str, prompt: str, max_tokens: int) -> threading.Thread:
        """Ask in a thread, and return once the engine has begun to generate the answer."""
        begun = threading.Event()
        body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}

        def read() -> None:
            headers = {"X-Request-Id": name}
            with self.http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
                if answer.status_code == 200:
                    for line in answer.iter_lines():
                        if line:
                            begun.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert begun.wait(PATIENCE)
        return thread

    def ask(self, name: str, prompt: str, max_tokens: int, **more: Any) -> None:
        body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True} | more
        headers = {"X-Request-Id": name}
        answer = self.http.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text

    def why(self, name: str) -> dict[str, Any]:
        """The explanation of the first choice of a request. Its parts add up to its latency."""
        answer = self.http.get(f"/debug/requests/cmpl-{name}", headers=ADMIN)
        found: dict[str, Any] = answer.json()["requests"][0]
        total = sum(cause["seconds"] for cause in found["causes"])
        assert abs(total - found["seconds"]) < 0.001
        return found

    def first_cause(self, name: str) -> str:
        cause: str = self.why(name)["causes"][0]["cause"]
        return cause


def long_prompt(asker: Asker, name: str) -> None:
    """A long prompt comes while the victim decodes."""
    victim = asker.start(name, "Once", 8)
    asker.ask(f"{name}-other", words(800), 1)
    victim.join()


def full_pool(asker: Asker, name: str) -> None:
    """Another request holds the blocks that the victim needs."""
    holder = asker.start(f"{name}-holder", words(330), 250)
    asker.ask(name, words(750), 1)
    holder.join()


def slow_client(asker: Asker, name: str) -> None:
    """The client lets its buffers become full, and reads on long after the last token."""
    body = {"prompt": "Once", "max_tokens": 60, "n": 8, "logprobs": 20, "ignore_eos": True}
    call = Call.of("/v1/completions", {**body, "stream": True, "request_id": name})
    address = urlsplit(asker.server.url)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW)
        sock.settimeout(PATIENCE)
        sock.connect((address.hostname, address.port))
        sock.sendall(call.request(str(address.hostname)))
        time.sleep(1.0)
        began = time.monotonic()
        while asker.server.load()["num_running"]:
            time.sleep(0.1)
        time.sleep(3.0 + 2 * (time.monotonic() - began))
        while sock.recv(1 << 16):
            pass


def grammar(asker: Asker, name: str) -> None:
    """The victim needs a large grammar that no request had before."""
    values = [f"{name} {random.random()} {number}" for number in range(2500)]
    asker.ask(name, "Once", 1, structured_outputs={"json": {"enum": values}})


def alone(asker: Asker, name: str) -> None:
    asker.ask(name, "Once", 4)


def hung_stage(asker: Asker, name: str) -> None:
    """A stage of the pipeline hangs while the victim decodes."""
    victim = asker.start(name, words(8), 900)  # a prompt that stops two engines is refused
    workers = workers_of(asker.server)
    assert len(workers) == 2
    os.kill(random.choice(workers), signal.SIGSTOP)
    victim.join()
    end = time.monotonic() + PATIENCE
    while asker.http.get("/ready").status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.1)


Plant = Callable[[Asker, str], None]
ON_ONE_SERVER: dict[str, tuple[Plant, str]] = {
    "long prompt": (long_prompt, "prompts of other requests between its tokens"),
    "full pool": (full_pool, "no free blocks"),
    "slow client": (slow_client, READING),
    "grammar": (grammar, "its grammar was compiled"),
}
"""The causes that need no server of their own, and their names in an explanation."""
PLUGIN = "plugins, mostly slow (schedule)"
STAGE = ("--pipeline-parallel-size", "2")
HUNG = LOST


def differences(asker: Asker, count: int, per_second: float) -> list[float]:
    """Send requests of many lengths, and return by which part of the latency that the client
    measured the parts of each explanation miss it."""
    rng = random.Random(count)
    prompts = [
        Prompt(text=words(rng.randint(5, 200)), max_tokens=rng.randint(24, 64), num_tokens=1)
        for _ in range(count)
    ]
    load = Load(
        server=Server(url=asker.server.url),
        endpoint=Completions(),
        path="/v1/completions",
        extra={"ignore_eos": True},
        request_id_prefix="measured-",
    )
    times = [index / per_second for index in range(count)]

    async def measure() -> Sequence[Answer]:
        try:
            return (await run(load, prompts, times)).answers
        finally:
            await load.server.close()

    answers = asyncio.run(measure())
    assert all(answer.is_ok for answer in answers)
    found = []
    for index, answer in enumerate(answers):
        explained = sum(c["seconds"] for c in asker.why(f"measured-{index}")["causes"])
        found.append(abs(explained - answer.latency) / answer.latency)
    return found
