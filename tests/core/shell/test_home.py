"""An engine says at once that it is used in the wrong event loop or process, and never hangs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from tokenmill import EngineStoppedError, SamplingParams, WrongContextError
from tokenmill.core.shell.engine_shell import EngineShell

from ...api.serving import toy_engine

PARAMS = SamplingParams(max_tokens=5, seed=7)


def as_trio(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine as another library than asyncio does."""
    try:
        work.send(None)
    finally:
        work.close()


USES: dict[str, Callable[[EngineShell], Awaitable[Any]]] = {
    "start": lambda engine: engine.start(),
    "submit": lambda engine: engine.submit("abc", PARAMS),
    "generate": lambda engine: anext(engine.generate("abc", PARAMS)),
    "abort": lambda engine: engine.abort("a"),
    "drain": lambda engine: engine.drain(),
    "close": lambda engine: engine.close(),
}


@pytest.mark.parametrize("use", USES)
def test_a_second_event_loop_is_told_so(use: str) -> None:
    async def elsewhere(engine: EngineShell) -> None:
        await USES[use](engine)

    async def main() -> None:
        async with toy_engine() as engine:
            with pytest.raises(WrongContextError, match="another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(elsewhere(engine)))
            assert [o.finished async for o in engine.generate("abc", PARAMS)][-1]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_stream_is_read_where_it_was_submitted() -> None:
    async def main() -> None:
        async with toy_engine() as engine:
            stream = await engine.submit("abc", PARAMS)

            async def read() -> None:
                await anext(stream)

            with pytest.raises(WrongContextError, match="another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(read()))
            assert [o.finished async for o in stream][-1]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_an_engine_does_not_outlive_the_event_loop_that_started_it() -> None:
    engine = toy_engine()
    asyncio.run(engine.start())
    with pytest.raises(WrongContextError, match=r"another event loop.*same asyncio\.run"):
        asyncio.run(engine.close())
    engine.running._device.shutdown()


def test_without_asyncio_it_does_not_start() -> None:
    engine = toy_engine()
    before = set(threading.enumerate())  # other tests may have an engine that is started
    with pytest.raises(WrongContextError, match=r"needs asyncio.*under trio"):
        as_trio(engine.start())
    new = set(threading.enumerate()) - before
    assert not [thread for thread in new if thread.name.startswith("tokenmill-device")]


def test_a_closed_engine_does_not_start_again() -> None:
    async def main() -> None:
        async with toy_engine() as engine:
            await engine.start()  # it is started: nothing happens
        with pytest.raises(EngineStoppedError, match="make a new one"):
            await engine.start()

    asyncio.run(main())


FORKED = """
import asyncio, multiprocessing, os, sys
import tokenmill.llm
from tests.api.serving import toy_engine
from tokenmill import LLM, WrongContextError

tokenmill.llm.AsyncEngine = lambda model, **options: toy_engine()


def told(use):
    try:
        use()
    except WrongContextError as error:
        print(error, flush=True)


def in_a_fork(use):
    pid = os.fork()
    if pid == 0:
        told(use)
        sys.exit()  # not os._exit: what runs at the end of a process must not hang either
    assert os.waitpid(pid, 0)[1] == 0


async def main():
    async with toy_engine() as engine:
        use = lambda: asyncio.run(engine.submit("abc"))
        child = multiprocessing.get_context("fork").Process(target=told, args=(use,))
        child.start()
        child.join()
        await engine.submit("abc")


with LLM() as llm:
    in_a_fork(lambda: llm.generate("abc"))
    in_a_fork(lambda: llm.close())
    assert llm.generate("abc")[0].finished
asyncio.run(main())
"""


def test_a_fork_of_the_process_is_told_so_and_can_end() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2, lines
    assert all("this process was forked from process" in line for line in lines)
