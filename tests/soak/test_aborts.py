"""Ten thousand clients that leave at random moments hold nothing, and change no answer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.server_process import running_server

from . import watching
from .asking import COMMON, FOR_CHATS, FOR_COMPLETIONS, GRAMMARS, TOOL, WORDS, Asker, Fields
from .calling import PATIENCE, Call, Client, NoAnswerError, parse

NUM_ABORTS = 10_000
NUM_CLIENTS = 40
"""More than the engine runs, so that some leave while they wait."""
FLAGS = (
    *("--max-num-seqs", "12", "--num-gpu-blocks-override", "256", "--no-enable-log-requests"),
    *("--long-prefill-token-threshold", "128"),
)
WHOLE = "too late: the answer was whole"
PATIENCES = (
    (0.005, 99),
    (0.05, 99),
    (0.3, 99),
    (1.0, 99),
    *((20.0, reads) for reads in (1, 2, 4, 8)),
)
"""Pairs: seconds on average, and how many times data comes, until a client leaves."""
CHANGING = ("id", "created", "created_at", "completed_at")
"""Fields of answers that differ from call to call."""


def test_ten_thousand_aborts_hold_nothing_and_change_no_answer(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with running_server(tmp_path, *FLAGS) as server:
        client = Client(server.url)
        before = asyncio.run(answers(client))
        pid = server.process.pid
        engines = watching.children(pid)
        num_files, num_threads = watching.num_files(pid), watching.num_threads(pid)
        moments = asyncio.run(leave_all(client))
        seconds = asyncio.run(until_empty(client))
        for name, value in moments.items():
            record_property(name, value)
        record_property("seconds until the server was empty", round(seconds, 1))
        assert watching.children(pid) == engines, "no engine failed"
        assert watching.num_files(pid) <= num_files + 1  # what is asked now
        record_property(
            "threads of the server, before and after", [num_threads, watching.num_threads(pid)]
        )
        after = asyncio.run(answers(client))
        assert after == before
        record_property("answers that are the same as before", len(after))
        metrics = asyncio.run(client.get("/metrics")).body.decode()
        record_property("requests that the engine aborted", num_aborted(metrics))
        log = server.log.read_text()
        assert "kv_blocks_leaked" not in log and '"error"' not in log, log[-3000:]


async def leave_all(client: Client) -> Counter[str]:
    """At which moments the clients left."""
    moments: Counter[str] = Counter()

    def num_left() -> int:
        return sum(count for name, count in moments.items() if not name.endswith(WHOLE))

    async def leave(asker: Asker) -> None:
        while num_left() < NUM_ABORTS:
            make = asker.rng.choice(KINDS)
            call = make(asker)
            seconds, num_reads = asker.rng.choice(PATIENCES)
            seconds = asker.rng.expovariate(1 / seconds)
            left = moment(call, await client.leave(call, seconds, num_reads))
            moments[f"{make.__name__}: {left}"] += 1

    await asyncio.gather(*(leave(Asker(seed, "")) for seed in range(NUM_CLIENTS)))
    return moments


async def until_empty(client: Client) -> float:
    """Seconds until the server has no request and holds no block. Connections of clients that left
    before the server took them come first."""
    began = time.monotonic()
    while True:
        load = (await client.get("/load")).json()
        if load["num_running"] == load["num_waiting"] == load["kv_cache_usage"] == 0:
            return time.monotonic() - began
        assert time.monotonic() < began + PATIENCE, load
        await asyncio.sleep(0.1)


def new_grammar(asker: Asker) -> Call:
    """A new grammar. New grammars are compiled one at a time, before their requests are queued."""
    alternatives = "|".join(asker.rng.sample(WORDS[:25], 6))
    regex = f"(({alternatives})[a-z]{{1,{asker.rng.randint(2, 300)}}} ){{1,9}}"
    fields: Fields = {"structured_outputs": {"regex": regex}, "max_tokens": 20, "stream": True}
    return Call.of("/v1/completions", {"prompt": asker.text(), **fields})


def tool_call(asker: Asker) -> Call:
    """A call whose arguments are streamed while they are written."""
    call = {"type": "function", "function": TOOL}
    fields: Fields = {"tools": [call], "tool_choice": "required", "max_tokens": 60}
    messages = [{"role": "user", "content": asker.text()}]
    return Call.of("/v1/chat/completions", {"messages": messages, "stream": True, **fields})


def long_prompt(asker: Asker) -> Call:
    """A prompt that takes several steps, see FLAGS."""
    prompt = " ".join(asker.text() for _ in range(80))
    return Call.of("/v1/completions", {"prompt": prompt, "max_tokens": 4, "stream": True})


def mixed(asker: Asker) -> Call:
    """A request with a longer prompt and a longer answer than others."""
    fields: Fields = {"max_tokens": asker.rng.randint(1, 60), "stream": asker.rng.random() < 0.7}
    if asker.rng.random() < 0.2:
        fields["prompt"] = " ".join(asker.text() for _ in range(20))
    if "prompt" in fields or asker.rng.random() < 0.4:
        return asker.completion(**fields)
    return asker.chat(**fields) if asker.rng.random() < 0.6 else asker.good()


def moment(call: Call, received: bytes) -> str:
    try:
        parse(call, received)
    except NoAnswerError:
        return "left in the answer" if received else "left before the answer"
    return WHOLE


KINDS = (mixed, mixed, mixed, new_grammar, tool_call, long_prompt)


async def answers(client: Client) -> list[Any]:
    """What one client gets alone, when the prompts are in the prefix cache."""
    for _ in range(2):
        found = [without_ids((await client.ask(call)).json()) for call in references()]
    return found


def references() -> list[Call]:
    """Greedy requests with all options."""
    greedy: Fields = {"temperature": 0, "max_tokens": 12}
    completion = greedy | {"prompt": "The mill by the river"}
    chat = greedy | {"messages": [{"role": "user", "content": "Name three colours."}]}
    message = {"max_tokens": 12, "messages": chat["messages"], "temperature": 0}
    return [
        *(
            Call.of("/v1/completions", completion | more)
            for more in (*COMMON, *FOR_COMPLETIONS, *GRAMMARS)
        ),
        *(Call.of("/v1/chat/completions", chat | more) for more in (*FOR_CHATS, *GRAMMARS)),
        Call.of("/v1/responses", {"input": "Name a tree.", "temperature": 0, "store": False}),
        Call.of("/v1/messages", message | {"model": "SmolLM2-135M-Instruct"}),
        Call.of("/v1/embeddings", {"input": "a tree"}),
    ]


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_ids(v) for k, v in value.items() if k not in CHANGING}
    return [without_ids(v) for v in value] if isinstance(value, list) else value


def num_aborted(metrics: str) -> int:
    lines = [line for line in metrics.splitlines() if 'finished_reason="abort"' in line]
    return round(sum(float(line.split()[-1]) for line in lines))
