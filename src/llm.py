"""LLM: a synchronous interface to the engine, for scripts and notebooks."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, nullcontext, suppress
from typing import Any, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .assembly import AsyncEngine, build_remote_engine
from .core.config import EngineConfig
from .core.errors import ConfigError, EngineStoppedError, InvalidRequestError, OverloadedError
from .core.interfaces import ChatMessage, Tokenizer, no_progress
from .core.outputs import RequestOutput
from .core.remote.client import RemoteEngine
from .core.remote.stream import RemoteStream
from .core.sampling_params import OutputKind, SamplingParams
from .core.shell.output_stream import OutputStream

T = TypeVar("T")
Tokens = str | Sequence[int]
Prompt = Tokens | Mapping[str, Any]
Engine = AsyncEngine | RemoteEngine


class LLM:
    """Generates outputs for lists of prompts, and waits for them.

    The engine runs on an event loop in a thread of its own, so LLM also works inside a running
    loop. `plugins` and `options` are those of AsyncEngine. With `data_parallel_size` there are
    several engines, in processes of their own, as in `tokenmill serve`. Close it, or use it as a
    context manager.
    """

    def __init__(
        self, model: str | None = None, *, plugins: Iterable[object] = (), **options: Any
    ) -> None:
        self._engine = _make_engine(model, plugins, options)
        self._loop = asyncio.new_event_loop()
        self._waiting = asyncio.Lock()
        """Held by a request that waits for room in the engine."""
        self._num_open = 0
        """Requests that have not ended and do not wait for room."""
        self._has_ended = asyncio.Event()
        """Set when an open request ends."""
        thread = threading.Thread(
            target=_serve, args=(self._loop,), name="tokenmill-llm", daemon=True
        )
        thread.start()
        self._finalizer = weakref.finalize(self, _shut_down, self._engine, self._loop, thread)
        try:
            self._run(self._engine.start())
        except BaseException:
            self._finalizer()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def engine(self) -> Engine:
        """The engine. Its coroutines must run on the event loop of another thread."""
        return self._engine

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, for `encode` and `decode`. `chat` applies the chat template."""
        return self._engine.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generate one RequestOutput per prompt, in the order of the prompts.

        A prompt is a text or a list of token ids, alone or as in vLLM: `{"prompt": "Hi"}` or
        `{"prompt_token_ids": [1, 2]}`. `use_tqdm` shows a progress bar. Raises
        InvalidRequestError for the first prompt or parameter that is refused, RequestFailedError
        for the first request that fails, and OverloadedError only if a plugin refuses a request
        while no other one is live. An error aborts the other requests. There may be any number
        of prompts: those for which the engine has no room wait.
        """
        prompt_list = _as_prompts(prompts)
        params = _as_params(sampling_params, len(prompt_list), self._engine)
        return self._run(self._generate_all(prompt_list, params, use_tqdm))

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Like `generate`, for one or several conversations in the model's chat template."""
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        encode = self._engine.tokenizer.encode_chat
        prompts = [encode(conversation) for conversation in conversations]  # type: ignore[arg-type]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def close(self) -> None:
        """Free the model's memory and end the thread. Safe to call twice."""
        self._finalizer()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._finalizer.alive:
            work.close()
            raise EngineStoppedError("this LLM is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # aborts the requests, also after a Ctrl-C
            raise

    async def _generate_all(
        self, prompts: list[Tokens], params: list[SamplingParams], show_progress: bool
    ) -> list[RequestOutput]:
        # At most as many at once as the queue takes: the rest of a long list would only be refused.
        most_n = max((p.n for p in params), default=1)
        room = asyncio.Semaphore(max(1, self._engine.config.max_num_queued_reqs // most_n))
        with _progress_bar(len(prompts)) if show_progress else nullcontext() as bar:

            async def generate_one(prompt: Tokens, one: SamplingParams) -> RequestOutput:
                async with room:
                    output = await self._last_output(prompt, one)
                if bar is not None:
                    bar.advance(bar.task_ids[0])
                return output

            return await _all_or_first_error(map(generate_one, prompts, params))

    async def _last_output(self, prompt: Tokens, params: SamplingParams) -> RequestOutput:
        params = params.with_changes(output_kind=OutputKind.FINAL)
        self._num_open += 1
        try:
            async with aclosing(await self._submit(prompt, params)) as stream:
                return await anext(stream)
        finally:
            self._note_end()

    async def _submit(self, prompt: Tokens, params: SamplingParams) -> OutputStream | RemoteStream:
        """Queue a request. If the engine is overloaded, wait for room, one request after the other.

        Raises OverloadedError if no other request of this LLM is open: then the engine would refuse
        this one again.
        """
        if not self._waiting.locked():
            with suppress(OverloadedError):
                return await self._engine.submit(prompt, params)
        self._note_end()  # it does not count as open while it waits
        try:
            async with self._waiting:
                return await self._submit_again(prompt, params)
        finally:
            self._num_open += 1

    async def _submit_again(
        self, prompt: Tokens, params: SamplingParams
    ) -> OutputStream | RemoteStream:
        while True:
            self._has_ended.clear()
            try:
                return await self._engine.submit(prompt, params)
            except OverloadedError:
                if not self._num_open and not self._has_ended.is_set():
                    raise
            await self._has_ended.wait()

    def _note_end(self) -> None:
        self._num_open -= 1
        self._has_ended.set()


def _make_engine(model: str | None, plugins: Iterable[object], options: dict[str, Any]) -> Engine:
    config = EngineConfig.from_options(model=model, **options)
    if config.data_parallel_size == 1:
        return AsyncEngine(model, plugins=plugins, **options)
    if list(plugins):
        raise ConfigError(
            f"--data-parallel-size {config.data_parallel_size} runs engines in other processes, "
            "which cannot use objects of this one: name plugins in plugins.toml"
        )
    return build_remote_engine(config, no_progress)


async def _all_or_first_error(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order. The first exception cancels the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Tokens]:
    is_one = isinstance(prompts, str | bytes | Mapping)
    if is_one or (prompts and all(isinstance(item, int) for item in prompts)):
        return [_as_tokens(prompts)]  # type: ignore[arg-type]
    return [_as_tokens(prompt) for prompt in prompts]  # type: ignore[arg-type]


def _as_tokens(prompt: Prompt) -> Tokens:
    """The text or token ids of a prompt. Raises InvalidRequestError for other things in it."""
    if not isinstance(prompt, Mapping):
        return prompt
    if len(prompt) == 1 and prompt.keys() <= {"prompt", "prompt_token_ids"}:
        (tokens,) = prompt.values()
        return tokens  # type: ignore[no-any-return]
    raise InvalidRequestError(
        "a prompt in braces has either 'prompt' or 'prompt_token_ids', "
        f"got {', '.join(map(repr, prompt)) or 'nothing'}",
        param="prompt",
    )


def _as_params(
    given: SamplingParams | Sequence[SamplingParams] | None,
    num_prompts: int,
    engine: Engine,
) -> list[SamplingParams]:
    if given is None:
        given = engine.default_sampling_params()
    if isinstance(given, SamplingParams):
        return [given] * num_prompts
    if len(given) != num_prompts:
        raise ValueError(
            f"there are {num_prompts} prompts and {len(given)} sampling_params; "
            "give one for each prompt, or one for all"
        )
    return list(given)


def _progress_bar(total: int) -> Progress:
    console = Console(stderr=True)  # a new one, because rich allows one display per console
    bar = Progress(
        TextColumn("generating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    bar.add_task("generating", total=total)
    return bar


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.close()


def _shut_down(engine: Engine, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    closing = asyncio.run_coroutine_threadsafe(engine.close(), loop)
    closing.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    if thread is not threading.current_thread():  # the garbage collector may call this in any
        thread.join()
        closing.result()
