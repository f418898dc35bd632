"""Sends requests at their times, and notes when the parts of their answers arrive."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .client import Server, ServerError
from .endpoints import Endpoint, EventReader, News
from .prompts import Prompt


@dataclass(slots=True, kw_only=True)
class Answer:
    """The measurements of one request. Times are in seconds."""

    start: float
    """When it was sent, on the clock of `time.perf_counter`."""
    num_prompt_tokens: int
    num_output_tokens: int = 0
    ttft: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Between the parts of the answer, which may hold several tokens."""
    latency: float = 0.0
    queued: float = 0.0
    """Time in which the client waited for --max-concurrency."""
    text: str = ""
    content: str = ""
    """The text without reasoning."""
    error: str = ""

    @property
    def is_ok(self) -> bool:
        return not self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests to send, and their destination."""

    server: Server
    endpoint: Endpoint
    path: str
    extra: Mapping[str, Any]
    """Fields of each body: the model, sampling parameters, and others."""
    max_concurrency: int | None = None
    request_id_prefix: str = "bench-"
    """The header X-Request-Id is this and the index of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The answers of a run, in the order of the requests."""

    answers: Sequence[Answer]
    seconds: float
    client_share: float
    """CPU time of this process per second: near 1, the client is the bottleneck."""


async def run(
    load: Load,
    prompts: Sequence[Prompt],
    times: Sequence[float],
    on_answer: Callable[[], None] = lambda: None,
) -> Run:
    """Send each prompt at its time, in seconds after the start, and wait for all answers."""
    gate = asyncio.Semaphore(load.max_concurrency) if load.max_concurrency else None
    cpu, start = time.process_time(), time.perf_counter()
    tasks: list[asyncio.Task[Answer]] = []
    assert len(prompts) == len(times)
    for index, at in enumerate(times):
        if (wait := start + at - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(_send_in_order(load, prompts, tasks, index, gate))
        task.add_done_callback(lambda done: on_answer())
        tasks.append(task)
    answers = await asyncio.gather(*tasks)
    seconds = time.perf_counter() - start
    share = (time.process_time() - cpu) / seconds if seconds else 0.0
    return Run(answers=answers, seconds=seconds, client_share=share)


async def _send_in_order(
    load: Load,
    prompts: Sequence[Prompt],
    tasks: Sequence[asyncio.Task[Answer]],
    index: int,
    gate: asyncio.Semaphore | None,
) -> Answer:
    """Send a request after the others of its conversation, with their answers."""
    prompt, history = prompts[index], list[Mapping[str, str]]()
    before = prompt.after
    while before is not None:
        earlier, answer = prompts[before], await tasks[before]
        if not answer.is_ok:
            error = "a request before it in its conversation failed"
            now = time.perf_counter()
            return Answer(start=now, num_prompt_tokens=prompt.num_tokens, error=error)
        asked = {"role": "user", "content": earlier.text}
        answered = {"role": "assistant", "content": answer.content}
        history = [*earlier.messages, asked, answered, *history]
        before = earlier.after
    whole = replace(prompt, messages=(*history, *prompt.messages))
    return await _send_in_turn(load, whole, index, gate)


async def _send_in_turn(
    load: Load, prompt: Prompt, index: int, gate: asyncio.Semaphore | None
) -> Answer:
    if gate is None:
        return await send(load, prompt, index)
    arrived = time.perf_counter()
    async with gate:
        answer = await send(load, prompt, index)
    answer.queued = answer.start - arrived
    return answer


async def send(load: Load, prompt: Prompt, index: int = 0) -> Answer:
    """Send one request, and read its answer. An error is in the answer."""
    body = {**load.endpoint.body(prompt), **load.extra}
    answer = Answer(start=time.perf_counter(), num_prompt_tokens=prompt.num_tokens)
    reader, texts, latest, num_parts = EventReader(), list[str](), answer.start, 0
    contents: list[str] = []
    whole = b""
    try:
        async for part in load.server.post(load.path, body, f"{load.request_id_prefix}{index}"):
            now = time.perf_counter()
            if not load.endpoint.streams:
                whole += part
                continue
            for event in reader.feed(part):
                news = load.endpoint.read(event)
                _note(answer, news)
                if not news.text:
                    continue
                if num_parts:
                    answer.gaps.append(now - latest)
                else:
                    answer.ttft = now - answer.start
                num_parts, latest = num_parts + 1, now
                texts.append(news.text)
                contents.append(news.text if news.content is None else news.content)
        if whole:
            _note(answer, load.endpoint.read(json.loads(whole)))
    except (ServerError, ValueError) as error:
        answer.error = str(error) or type(error).__name__
    # Until the last token, as vLLM measures: what follows it is not the engine's work.
    answer.latency = (latest if num_parts else time.perf_counter()) - answer.start
    answer.text, answer.content = "".join(texts), "".join(contents)
    answer.num_output_tokens = answer.num_output_tokens or num_parts
    if load.endpoint.streams and not num_parts and not answer.error:
        answer.error = "the answer has no text"
    return answer


def _note(answer: Answer, news: News) -> None:
    if news.error is not None:
        answer.error = news.error
    if news.num_output_tokens is not None:
        answer.num_output_tokens = news.num_output_tokens
    if news.num_prompt_tokens is not None:
        answer.num_prompt_tokens = news.num_prompt_tokens
