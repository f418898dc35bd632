"""The real server with the real model: OpenAI's own client, disconnects, and the drain at SIGTERM."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from .serving import RunningServer, running_server

MODEL = "SmolLM2-135M-Instruct"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    with running_server(folder, "--num-gpu-blocks-override", "600") as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1",
        api_key="none",
        max_retries=0,
        _strict_response_validation=True,
    ) as found:
        yield found


def test_a_chat_completes_and_streams_the_same_text(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=24, seed=1
    )
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            temperature=0,
            max_tokens=24,
            seed=1,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert whole.choices[0].message.content == text
    assert "Paris" in text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert whole.usage is not None and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_completions_of_several_prompts_come_by_index(
    client: openai.OpenAI, server: RunningServer
) -> None:
    prompts = ["The capital of France is", "1, 2, 3, 4,"]
    whole = client.completions.create(
        model=MODEL, prompt=prompts, max_tokens=8, temperature=0, n=2, logprobs=2
    )
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.choices[0].text == whole.choices[1].text != whole.choices[2].text
    assert "Paris" in whole.choices[0].text
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens is not None
    assert "".join(logprobs.tokens) == whole.choices[0].text
    assert logprobs.top_logprobs is not None
    assert all(len(top) == 2 for top in logprobs.top_logprobs)
    streamed = {i: "" for i in range(4)}
    # Between the first and the last chunk finish_reason is null, as OpenAI's own API sends it; the
    # client's strict mode does not know that for this old endpoint.
    lenient = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    for chunk in lenient.completions.create(
        model=MODEL, prompt=prompts, max_tokens=8, temperature=0, n=2, stream=True
    ):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    lenient.close()
    assert streamed == {choice.index: choice.text for choice in whole.choices}


def test_chat_logprobs_have_bytes_that_join_to_the_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        max_tokens=8,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
        n=2,
    )
    for choice in answer.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        raw = b"".join(bytes(entry.bytes or ()) for entry in choice.logprobs.content)
        # the stop token at the end has a probability but is not part of the text
        assert raw.decode().startswith(choice.message.content or "")
        assert all(len(entry.top_logprobs) == 3 for entry in choice.logprobs.content)
        assert choice.logprobs.content[0].logprob <= 0


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="1, 2, 3, 4,", max_tokens=40, temperature=0, stop=[" 7"]
    )
    assert answer.choices[0].finish_reason == "stop"
    assert "7" not in answer.choices[0].text
    assert "6" in answer.choices[0].text


def test_mistakes_raise_the_clients_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="gpt-4", prompt="x")
    with pytest.raises(openai.BadRequestError, match=r"8192 tokens.*100000"):
        client.completions.create(model=MODEL, prompt="x", max_tokens=100000)
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=MODEL, prompt="x", temperature=-1)
    assert raised.value.param == "temperature"
    assert [m.id for m in client.models.list()] == [MODEL]


def test_the_async_client_streams(server: RunningServer) -> None:
    async def ask() -> str:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", _strict_response_validation=True
        ) as client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=QUESTION, temperature=0, max_tokens=16, stream=True
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream])

    assert "Paris" in asyncio.run(ask())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(server: RunningServer, stream: bool) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": stream}

    async def leave() -> None:
        async with httpx.AsyncClient() as client:
            reading = asyncio.create_task(_read(client, f"{server.url}/v1/completions", body))
            for _ in range(200):
                if (await client.get(f"{server.url}/load")).json()["num_running"]:
                    break
                await asyncio.sleep(0.02)
            reading.cancel()

    asyncio.run(leave())
    assert server.wait_until_empty()["kv_cache_usage"] == 0


def test_two_hundred_requests_with_random_aborts_leave_no_block_held(server: RunningServer) -> None:
    rng = random.Random(7)

    async def one(client: httpx.AsyncClient, patience: float | None) -> None:
        body = {
            "prompt": "word " * rng.randint(1, 60),
            "max_tokens": rng.randint(1, 12),
            "stream": rng.random() < 0.5,
        }
        reading = _read(client, f"{server.url}/v1/completions", body)
        if patience is None:
            await reading
            return
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reading, patience)
            raise TimeoutError  # it was faster than its client's patience

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=300, limits=limits) as client:
            patiences = [rng.choice([None, 0.01, 0.1, 0.5, 2.0]) for _ in range(200)]
            await asyncio.gather(*(one(client, p) for p in patiences))

    asyncio.run(all_of_them())
    assert server.wait_until_empty(60)["kv_cache_usage"] == 0


def test_metrics_are_prometheus_text(server: RunningServer) -> None:
    text = httpx.get(f"{server.url}/metrics").text
    assert 'tokenmill:kv_cache_usage_perc{engine="0",model_name="SmolLM2-135M-Instruct"}' in text


def test_sigterm_lets_a_stream_finish_and_refuses_new_requests(tmp_path: Path) -> None:
    with running_server(tmp_path, "--num-gpu-blocks-override", "300") as server:
        body = {"prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True}
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=120) as reply:
            lines = reply.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            refused = _until_refused(url)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert httpx.get(f"{server.url}/ready").status_code == 503
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(60) == 0


def test_a_taken_port_is_one_line_before_anything_is_loaded(server: RunningServer) -> None:
    port = server.url.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, "-m", "tokenmill", "serve", "--port", port],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot listen on 127.0.0.1:")
    assert "loading" not in done.stderr and "Traceback" not in done.stderr


def _until_refused(url: str) -> httpx.Response:
    """The signal reaches the server a moment after it was sent."""
    for _ in range(50):
        reply = httpx.post(url, json={"prompt": "x", "max_tokens": 1}, timeout=60)
        if reply.status_code != 200:
            return reply
    raise AssertionError("still accepting")


async def _read(client: httpx.AsyncClient, url: str, body: dict[str, object]) -> None:
    async with client.stream("POST", url, json=body) as reply:
        async for _ in reply.aiter_bytes():
            pass
