"""LLM: a synchronous interface to the engine, for scripts and notebooks."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NoReturn, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .assembly import AsyncEngine, build_supervised_engine
from .core.config import EngineConfig
from .core.errors import ConfigError, EngineStoppedError, InvalidRequestError
from .core.interfaces import ChatMessage, Tokenizer, no_progress
from .core.outputs import RequestOutput
from .core.requests.given_images import ImagePrompt, take_images
from .core.requests.pooling import Pooling, PoolingParams
from .core.requests.request_options import NO_OPTIONS, RequestOptions
from .core.requests.sampling_params import SamplingParams
from .core.shell.batch import BatchSender
from .core.shell.engine_shell import EngineShell
from .core.shell.home import Process
from .core.shell.prompts import Prompt, ReadPrompt, as_prompts, one_each
from .pooling_outputs import (
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringRequestOutput,
    embedded,
    pooled,
    scored,
)

T = TypeVar("T")


class LLM:
    """Generates outputs for lists of prompts, and waits for them.

    `model` is a directory, a GGUF file or ORG/NAME of the Hugging Face hub; None: the default
    model. `plugins` are policies and observers of the program: objects, or modules with `register`.
    `options` are fields of EngineConfig, with the names of the command line's flags:
    `LLM("path/to/model", max_num_seqs=64)`.

    The engine runs on an event loop in a thread of its own, so LLM also works inside a running
    event loop, and several threads may share one. With `data_parallel_size` there are several
    engines, in processes of their own, as in `tokenmill serve`. Close it, or use it as a context
    manager. A fork of the process must make an LLM of its own: this one raises WrongContextError
    there.

    Raises ConfigError for an unknown or invalid option, and when the model or a plugin cannot work.
    """

    def __init__(
        self, model: str | None = None, *, plugins: Iterable[object] = (), **options: Any
    ) -> None:
        self._engine = _make_engine(model, plugins, options)
        self._sender = BatchSender(self._engine)
        self._loop = asyncio.new_event_loop()
        self._process = Process()
        thread = threading.Thread(
            target=_serve, args=(self._loop,), name="tokenmill-llm", daemon=True
        )
        thread.start()
        self._finalizer = weakref.finalize(
            self, _shut_down, self._engine, self._loop, thread, self._process
        )
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
    def engine(self) -> EngineShell:
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
        request_timeout: float | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generate one RequestOutput per prompt, in the order of the prompts.

        A prompt is a text or a list of token ids, alone or as in vLLM: `{"prompt": "Hi"}` or
        `{"prompt_token_ids": [1, 2]}`. With images:
        `{"prompt": "<image>Hi", "multi_modal_data": {"image": image}}`, where `image` is an image
        of Pillow, the bytes of a file, or a list with one for each placeholder. `sampling_params`
        are for all prompts, or a list with those of each one; None: the model's defaults.
        `request_timeout`: seconds after which a request ends with the text that it has, and the
        finish reason "abort"; the time in which it waits for room does not count. `use_tqdm` shows
        a progress bar on a terminal.

        There may be any number of prompts: those for which the engine has no room wait. Raises
        InvalidRequestError for the first prompt or parameter that is refused, RequestFailedError
        for the first request that fails, OverloadedError only if a plugin refuses a request while
        no other one is live, and EngineStoppedError after `close` or when the engine is lost. An
        error aborts the other requests.
        """
        prompt_list = as_prompts(prompts)
        if sampling_params is None:
            sampling_params = self._engine.default_sampling_params()
        params = one_each(sampling_params, len(prompt_list), "sampling_params", SamplingParams)
        options = RequestOptions(request_timeout=request_timeout)
        return self._send(prompt_list, params, "generating", use_tqdm, options)

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        request_timeout: float | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Like `generate`, for one or several conversations in the model's chat template.

        `messages` are those of one conversation, as in OpenAI's API:
        `{"role": "user", "content": "Hi"}`; or a list of conversations. Parts of a content may be
        images: of Pillow, as in vLLM (`{"type": "image_pil", "image_pil": image}`), of Pillow or
        bytes (`{"type": "image", "image": image}`), or a data URL ("image_url").
        `add_generation_prompt` ends the prompt where the answer begins. With
        `continue_final_message` (then `add_generation_prompt` must be False) the answer continues
        the last message. `chat_template_kwargs` are variables of the template, for example
        `{"enable_thinking": False}`. Raises what `generate` raises, and InvalidRequestError without
        a chat template, for messages that it refuses, and for a `chat_template`, which is an option
        of the model.
        """
        if chat_template is not None:
            raise InvalidRequestError(
                "a model has one chat template: give it to LLM(chat_template=FILE_OR_TEXT), "
                "not to chat",
                param="chat_template",
            )
        is_one = isinstance(messages, Mapping) or isinstance(next(iter(messages), None), Mapping)
        prompts: list[ReadPrompt] = []
        for conversation in [messages] if is_one else messages:
            shown, images = take_images(conversation)  # type: ignore[arg-type]
            self._engine.images.check(images)
            token_ids = self._engine.tokenizer.encode_chat(
                shown,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_kwargs=chat_template_kwargs,
            )
            with_images = ImagePrompt(tokens=token_ids, images=tuple(images))
            prompts.append(with_images if images else token_ids)
        return self.generate(
            prompts,
            sampling_params,
            request_timeout=request_timeout,
            use_tqdm=use_tqdm,
        )

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """Compute the embedding of each prompt: `output.outputs.embedding`, scaled to length 1.

        Every model can embed: the numbers are its hidden state after the last norm, that of the
        last token or the average over all (option `pooling`). Only a model that was trained for it
        makes good embeddings. Prompts, `use_tqdm` and errors are those of `generate`.
        `pooling_params` are for all prompts, or a list with those of each one.
        """
        return list(map(embedded, self.encode(prompts, pooling_params, use_tqdm=use_tqdm)))

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        pooling_task: str = "embed",
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Like `embed`, with the numbers in `output.outputs.data`.

        Raises InvalidRequestError for the other values of `pooling_task` that vLLM has, too: they
        need models with other heads.
        """
        if pooling_task != "embed":
            self._refuse(f"pooling_task {pooling_task!r}")
        prompt_list = as_prompts(prompts)
        if pooling_params is None:
            pooling_params = PoolingParams()
        wanted = one_each(pooling_params, len(prompt_list), "pooling_params", PoolingParams)
        for one in wanted:
            one.check(self._engine.info.hidden_size)
        pooling = Pooling(self._engine.config.pooling)
        params = [
            SamplingParams(
                max_tokens=0, pooling=pooling, truncate_prompt_tokens=one.truncate_prompt_tokens
            )
            for one in wanted
        ]
        outputs = self._send(prompt_list, params, "embedding", use_tqdm)
        return [pooled(output, one) for output, one in zip(outputs, wanted, strict=True)]

    def score(
        self,
        data_1: Prompt | Sequence[Prompt],
        data_2: Prompt | Sequence[Prompt],
        /,
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
    ) -> list[ScoringRequestOutput]:
        """Compute how similar two texts are: `output.outputs.score`, for one pair or many.

        The score is the cosine between the embeddings of both, see `embed`. `data_1` and `data_2`
        are one text each, one and a list, or two lists of the same length. Raises ValueError for
        other lengths, and what `embed` raises.
        """
        first, second = as_prompts(data_1), as_prompts(data_2)
        if len(first) not in (1, len(second)):
            raise ValueError(
                f"there are {len(first)} and {len(second)} texts; give one and many, or the same "
                "number of both"
            )
        params = replace(pooling_params or PoolingParams(), use_activation=True)
        found = self.encode([*first, *second], params, use_tqdm=use_tqdm)
        ones, others = found[: len(first)], found[len(first) :]
        return list(map(scored, ones * len(others) if len(ones) == 1 else ones, others))

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
    ) -> NoReturn:
        """Raise InvalidRequestError: a model for classification has a head that tokenmill does not
        load. vLLM has this method."""
        self._refuse("classify")

    def reset_prefix_cache(self) -> bool:
        """Forget the prompts of earlier calls: the next ones are computed, not found in the prefix
        cache. Returns whether the cache is empty now: False while other threads generate."""
        return self._run(self._engine.reset_prefix_cache())

    def close(self) -> None:
        """Free the model's memory and end the thread. Safe to call twice."""
        self._finalizer()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._process.check()
            if not self._finalizer.alive:
                raise EngineStoppedError("this LLM is closed")
        except BaseException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # aborts the requests, even after a Ctrl-C
            raise

    def _send(
        self,
        prompts: list[ReadPrompt],
        params: list[SamplingParams],
        title: str,
        shows_progress: bool,
        options: RequestOptions = NO_OPTIONS,
    ) -> list[RequestOutput]:
        with _progress_bar(title, len(prompts)) if shows_progress else nullcontext() as bar:

            def advance() -> None:
                if bar is not None:
                    bar.advance(bar.task_ids[0])

            return self._run(self._sender.send(prompts, params, advance, options))

    def _refuse(self, what: str) -> NoReturn:
        info = self._engine.info
        raise InvalidRequestError(
            f"{what} needs another kind of model: {info.name} ({info.architecture}) can generate, "
            "chat, embed and score",
            param="pooling_task",
        )


def _make_engine(
    model: str | None, plugins: Iterable[object], options: dict[str, Any]
) -> EngineShell:
    config = EngineConfig.from_options(model=model, **options)
    if config.data_parallel_size == 1:
        return AsyncEngine(model, plugins=plugins, **options)
    if list(plugins):
        raise ConfigError(
            f"--data-parallel-size {config.data_parallel_size} runs engines in other processes, "
            "which cannot use objects of this one: name plugins in plugins.toml"
        )
    return build_supervised_engine(config, no_progress)


def _progress_bar(title: str, total: int) -> Progress:
    console = Console(stderr=True)  # a new one, because rich allows one display per console
    bar = Progress(
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    bar.add_task(title, total=total)
    return bar


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.close()


def _shut_down(
    engine: EngineShell, loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: Process
) -> None:
    if not process.is_this:
        return  # neither the thread nor the engine are part of a fork
    closing = asyncio.run_coroutine_threadsafe(engine.close(), loop)
    closing.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    if thread is not threading.current_thread():  # the garbage collector may call this in any
        thread.join()
        closing.result()
