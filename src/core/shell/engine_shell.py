"""The interface of every engine: checks each request once, and passes it to where it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Protocol, Self

from ..config import EngineConfig
from ..contract.activity import Activity, LiveRequest
from ..contract.client import EngineClient, Load, RequestStream
from ..contract.explanation import Explanation
from ..contract.image_reading import ImageReading
from ..contract.plugin_info import HookStats, PluginInfo
from ..contract.trace import Trace
from ..errors import EngineStoppedError
from ..interfaces import ChatMessage, MediaInfo, MediaReader, ModelInfo, Tokenizer
from ..members import FRAME_IMAGES
from ..outputs import RequestOutput
from ..requests.given_images import ImagePrompt, Prompt, take_images
from ..requests.media_prompt import EnginePrompt, MediaPrompt
from ..requests.request_options import NO_OPTIONS, RequestOptions
from ..requests.sampling_params import SamplingParams
from .checking import CheckedRequest, check, default_sampling_params
from .home import Life
from .prompts import as_prompt
from .served import Served, ServedRequests, TimedStream
from .unused_settings import log_unused

CLOSED = "the engine was closed, and does not start again: make a new one"
CLOSING_SECONDS = 5.0
"""Time that the open steps get to end when the engine drains or closes. A step takes less than a
second on most machines; a device that hangs must not keep the program from ending."""
MakeReader = Callable[[EngineConfig, MediaInfo, Tokenizer], MediaReader]
"""Makes the reader of images. Raises ConfigError if the model's images cannot be processed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts about a model that are known once it is loaded."""

    info: ModelInfo
    tokenizer: Tokenizer


class RunningEngine(Protocol):
    """The place where requests of an engine run: this process or others. EngineClient documents the
    methods that both have. EngineShell calls all but `start` and `close` after the start."""

    life: Life
    facts: Facts | None
    """None before the model is loaded."""

    @property
    def max_model_len(self) -> int: ...
    async def start(self, client: EngineClient) -> None: ...
    async def close(self) -> None: ...
    async def wait_idle(self) -> None:
        """Wait until no request is left. No more will come."""
        ...

    def check_accepting(self) -> None:
        """Raise EngineStoppedError if a request would be refused."""
        ...

    async def queue(
        self, checked: CheckedRequest, prompt: str | None, arrival_time: float
    ) -> TimedStream:
        """Queue a request after the checks that only the engine itself can make. `prompt`: its
        text, if it came as a text."""
        ...

    def abort(self, request_id: str | None) -> None:
        """End the requests with this id early, or all. Their last outputs follow."""
        ...

    async def refresh(self) -> None: ...
    async def reset_prefix_cache(self) -> bool: ...
    def load(self) -> Load: ...
    def live_requests(self) -> tuple[LiveRequest, ...]: ...
    async def explain(self, request_id: str | None, count: int) -> tuple[Explanation, ...]:
        """The explanations of the step log for a request; None: for the `count` slowest ones."""
        ...

    async def activity(self, after_step: int) -> tuple[Activity, ...]: ...
    async def measure_regions(self, until: float) -> None:
        """`until`: a time of the monotonic clock."""
        ...

    async def trace(self, since: float) -> tuple[Trace, ...]:
        """As EngineClient.trace, from a time of the monotonic clock on."""
        ...

    def plugins(self) -> tuple[PluginInfo, ...]: ...
    def hook_stats(self) -> tuple[HookStats, ...]: ...
    def render_metrics(self) -> bytes: ...


class EngineShell(EngineClient):
    """Serves many requests at once. Use as `async with`, or call `start` and `close`.

    EngineClient documents the methods. Call them in the event loop in which the engine was started.
    It installs no signal handler and configures no logging.
    """

    def __init__(
        self,
        config: EngineConfig,
        running: RunningEngine,
        *,
        warns: bool = True,
        make_reader: MakeReader | None = None,
    ) -> None:
        """`warns`: log the settings without effect; False in an engine's own process, whose parent
        logs them. `make_reader`: makes the reader of images for a model that reads them; None: the
        requests of this engine have no images, or come with them."""
        self._config = config
        self._make_reader = make_reader
        self._images: ImageReading | None = None
        self._warns = warns
        self.running = running
        """The engine, in this process or in others: a LocalEngine or a SupervisedEngine."""
        self._life = running.life
        self._served = ServedRequests(config.step_log_size)

    # Start and end

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Load the model and begin to serve.

        Raises ConfigError when the configuration, the model or a plugin cannot work.
        """
        self._life.home.enter()
        if self._life.is_closed:
            raise EngineStoppedError(CLOSED)
        if self.running.facts is not None:
            return
        try:
            await self.running.start(self)
            self._images = self._read_images()
        except BaseException:
            await self.close()
            raise
        if self._warns:
            log_unused(self._config, self.info)

    async def drain(self, timeout: float | None = None) -> None:
        self._life.home.check()
        self._life.is_draining = True
        running = self._started()
        try:
            await asyncio.wait_for(running.wait_idle(), timeout)
        except TimeoutError:
            running.abort(None)
            with suppress(TimeoutError):
                await asyncio.wait_for(running.wait_idle(), CLOSING_SECONDS)

    async def close(self) -> None:
        if not self._life.is_closed:
            self._life.home.check()
            self._life.is_closed = True
            if self._images is not None:
                self._images.close()
            await self.running.close()

    # The model

    @property
    def is_started(self) -> bool:
        return self.running.facts is not None and not self._life.is_closed

    @property
    def config(self) -> EngineConfig:
        return self._config

    @property
    def info(self) -> ModelInfo:
        return self._facts.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._facts.tokenizer

    @property
    def images(self) -> ImageReading:
        _ = self._facts
        assert self._images is not None, "the engine is started"
        return self._images

    @property
    def max_model_len(self) -> int:
        return self._started().max_model_len

    @property
    def model_name(self) -> str:
        return self._config.served_model_name or self.info.name

    # Requests

    def default_sampling_params(self, **given: Any) -> SamplingParams:
        return default_sampling_params(self._config, self.info, given)

    async def submit(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        **fields: Any,
    ) -> RequestStream:
        self._life.home.check()
        running, facts = self._started(), self._facts
        running.check_accepting()
        arrival_time = time.monotonic()
        options = (options or NO_OPTIONS).with_changes(**fields)
        given = as_prompt(prompt)
        if isinstance(given, ImagePrompt):
            given = await self._with_images(given, options.cache_salt)
        checked = await check(
            given,
            sampling_params or self.default_sampling_params(),
            options,
            tokenizer=facts.tokenizer,
            info=facts.info,
            config=self._config,
            max_model_len=running.max_model_len,
        )
        text = given if isinstance(given, str) else None
        tokenized = time.monotonic()
        stream = await running.queue(checked, text, arrival_time)
        self._served.add(
            Served(
                request_id=stream.request_id,
                prompt_index=checked.options.prompt_index,
                api_key_id=checked.options.api_key_id,
                num_prompt_tokens=len(stream.prompt_token_ids),
                arrival=arrival_time,
                tokenized=tokenized,
                times=stream.times,
            )
        )
        return stream

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        **fields: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        stream = await self.submit(prompt, sampling_params, options, **fields)
        async with aclosing(stream):
            async for output in stream:
                yield output

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        sampling_params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        shown, images = take_images(messages)
        self.images.check(images)
        token_ids = await asyncio.to_thread(
            self.tokenizer.encode_chat,
            shown,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=chat_template_kwargs,
        )
        prompt: EnginePrompt = token_ids
        if images:
            salt = (options or NO_OPTIONS).with_changes(**fields).cache_salt
            found = ImagePrompt(tokens=token_ids, images=tuple(images))
            prompt = await self._with_images(found, salt)
        async with aclosing(self.generate(prompt, sampling_params, options, **fields)) as outputs:
            async for output in outputs:
                yield output

    async def abort(self, request_id: str) -> None:
        self._life.home.check()
        self._started().abort(request_id)

    # Reports

    async def refresh(self) -> None:
        self._life.home.check()
        await self._started().refresh()

    async def reset_prefix_cache(self) -> bool:
        self._life.home.check()
        return await self._started().reset_prefix_cache()

    def load(self) -> Load:
        return self._started().load()

    def live_requests(self) -> tuple[LiveRequest, ...]:
        return self._started().live_requests()

    async def explain(self, request_id: str) -> tuple[Explanation, ...]:
        self._life.home.check()
        found = await self._started().explain(request_id, 0)
        return self._served.complete(found) or self._served.explain_lost(request_id)

    async def slowest(self, count: int = 20) -> tuple[Explanation, ...]:
        self._life.home.check()
        found = self._served.complete(await self._started().explain(None, count))
        return tuple(sorted(found, key=lambda one: -one.seconds))[:count]

    async def activity(self, after_step: int = -1) -> tuple[Activity, ...]:
        self._life.home.check()
        return await self._started().activity(after_step)

    async def measure_regions(self, seconds: float) -> None:
        self._life.home.check()
        await self._started().measure_regions(time.monotonic() + seconds)

    async def trace(self, seconds: float) -> tuple[Trace, ...]:
        since = time.monotonic() - seconds  # now: an engine in another process may answer late
        self._life.home.check()
        return await self._started().trace(since)

    def plugins(self) -> tuple[PluginInfo, ...]:
        return self._started().plugins()

    def hook_stats(self) -> tuple[HookStats, ...]:
        return self._started().hook_stats()

    def render_metrics(self) -> bytes:
        return self._started().render_metrics()

    # Inside

    def _read_images(self) -> ImageReading:
        reader = None
        if self.info.media is not None and self._make_reader is not None:
            reader = self._make_reader(self._config, self.info.media, self.tokenizer)
        return ImageReading(reader, self.info, self._config)

    async def _with_images(self, prompt: ImagePrompt, salt: str | None) -> MediaPrompt:
        """The prompt with its images in the places of placeholders."""
        self.images.check(prompt.images)
        tokens = prompt.tokens
        if isinstance(tokens, str):
            framed = FRAME_IMAGES.of(self.tokenizer)(tokens)
            tokens = await asyncio.to_thread(self.tokenizer.encode, framed)
        found = [await self.images.read(image, salt) for image in prompt.images]
        return self.images.placed(tokens, found)

    @property
    def _facts(self) -> Facts:
        facts = self.running.facts
        if facts is None:
            raise EngineStoppedError(
                "the engine is not started: use `async with` or call `await start()`"
            )
        return facts

    def _started(self) -> RunningEngine:
        _ = self._facts
        return self.running
