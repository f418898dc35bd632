"""The asyncio shell around EngineCore: start, submit, abort, drain and close."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, Self

from ..config import EngineConfig
from ..contract.client import EngineClient, LiveRequest, Load
from ..contract.events import Started, Stopping
from ..contract.plugin_info import HookStats, PluginInfo
from ..contract.speculation import SpeculationLimits
from ..engine.engine_core import EngineCore
from ..engine.request import Request
from ..engine.step import StepLimits
from ..errors import CONTAINED, ConfigError, EngineStoppedError, InvalidRequestError
from ..host.calling.running_calls import show_calls
from ..host.calling.watchdog import Watchdog
from ..host.plugin_host import PluginHost
from ..interfaces import Executor, GrammarChecker, ModelInfo, Progress, Tokenizer
from ..kv_memory import blocks_held, longest_sequence
from ..log import get_logger
from ..processes.board import private_board
from ..request_options import RequestOptions
from ..sampling_params import SamplingParams
from .checking import CheckedRequest, check
from .home import Home
from .new_requests import make_requests
from .output_stream import Completion, OutputStream
from .sampling_defaults import default_sampling_params
from .step_loop import StepLoop, stopped_by
from .unused_settings import log_unused

log = get_logger("engine")

DRAINING = "the engine is shutting down and accepts no new requests"
CLOSED = "the engine was closed, and does not start again: make a new one"
DEVICE_THREAD = "tokenmill-device"
"""Beginning of the name of each engine's device thread."""
SCORING_BYTES = 1 << 28
"""Memory for the float32 logits of the prompt tokens that a step scores."""
SCORING_WIDTH = 128
"""The softmax, the rank and the most likely tokens of a scored token cost as much as its logits
would cost with this number of additional dimensions of the hidden state (measured on CPUs)."""
LEAST_CONTEXT = 256
"""Tokens. If the KV memory is too small for one request of this length, the engine would refuse
almost every chat: the chat template of the default model alone takes 30 tokens."""
CLOSING_SECONDS = 5.0
"""Time that the open steps get to end when the engine drains or closes. A step takes less than a
second on most machines; a device that hangs must not keep the program from ending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """The parts of an engine, which are built on the device thread."""

    executor: Executor
    tokenizer: Tokenizer
    plugins: PluginHost
    grammars: GrammarChecker | None = None
    """None: the engine takes no request with a grammar."""


Builder = Callable[[EngineConfig, Progress], EngineParts]


class EngineShell(EngineClient):
    """Serves many requests at once. Use as `async with`, or call `start` and `close`.

    EngineClient documents the methods. Call them in the event loop in which the engine was started.
    It installs no signal handler and configures no logging. On a CPU, building an engine may start
    the compiler of the native kernels, and their self-test once per library and CPU.
    TOKENMILL_CPU_SELF_TEST=0 switches the test off.
    """

    def __init__(
        self,
        config: EngineConfig,
        build: Builder,
        progress: Progress | None = None,
        *,
        warns: bool = True,
    ) -> None:
        """`warns`: log the settings without effect; False if SupervisedEngine logs them."""
        self._warns = warns
        self._config = config
        self._build = build
        self._progress: Progress = progress or (lambda stage, part: None)
        self._random = random.Random(config.seed)
        self._device = ThreadPoolExecutor(1, thread_name_prefix=DEVICE_THREAD)
        self.board = private_board(config.max_num_seqs)
        """Where the engine writes what it does. For a parent process, set another before `start`.
        """
        self._lifespans = AsyncExitStack()
        self._watchdog: Watchdog | None = None
        self._home = Home()
        self._parts: EngineParts | None = None
        self._loop: StepLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_draining = False
        self._is_closed = False

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
        self._home.enter()
        if self._is_closed:
            raise EngineStoppedError(CLOSED)
        if self._parts is not None:
            return
        began = time.monotonic()
        try:
            self._parts = await self._on_device(self._build, self._config, self._progress)
            executor, plugins = self._parts.executor, self._parts.plugins
            self._max_model_len = fit_max_model_len(self._config, executor.info)
            core = make_core(self._config, executor.info, plugins, self._max_model_len)
            load_seconds = time.monotonic() - began
            self._loop = StepLoop(
                core, executor, self._device, self.board, load_seconds, plugins.foreign_computing
            )
            show_calls(plugins.guards, self.board)
            self._watchdog = Watchdog(plugins.guards, self._config.hook_watchdog_seconds)
            self._watchdog.start()
            limit = self._config.plugin_start_timeout or None
            for lifespan in plugins.lifespans(self, limit):
                await self._lifespans.enter_async_context(lifespan)
        except BaseException:
            await self.close()
            raise
        self._task = asyncio.create_task(self._loop.run(), name="tokenmill-engine")
        if self._warns:
            log_unused(self._config, self.info)
        plugins.emit(
            Started(info=self.info, model_name=self.model_name, max_model_len=self._max_model_len)
        )

    def prepare_grammars(self) -> None:
        """Get ready for the first grammar in the background, so that its request need not wait for
        a process to start. For servers: the process would be useless to most scripts."""
        if (checker := self._started().grammars) is not None:
            checker.prepare()

    async def drain(self, timeout: float | None = None) -> None:
        self._home.check()
        self._is_draining = True
        loop = self._running_loop()
        try:
            await asyncio.wait_for(loop.wait_idle(), timeout)
        except TimeoutError:
            loop.abort_all()
            with suppress(TimeoutError):
                await asyncio.wait_for(loop.wait_idle(), CLOSING_SECONDS)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._home.check()
        self._is_closed = True
        hangs = not await self._stop_loop()
        await self._lifespans.aclose()
        if self._parts is not None:
            self._parts.plugins.emit(Stopping())
            if self._parts.grammars is not None:
                self._parts.grammars.close()
            with suppress(RuntimeError):  # at the end of a program its worker threads have ended
                closing = self._on_device(_close_executor, self._parts)
                await (asyncio.wait([closing], timeout=0) if hangs else closing)
        self._device.shutdown(wait=False)
        if self._watchdog is not None:
            self._watchdog.stop()

    async def _stop_loop(self) -> bool:
        """End all requests and the loop; False if its step does not end in time."""
        if self._loop is None or self._task is None:
            return True
        self._loop.abort_all()
        self._loop.stop()
        _, running = await asyncio.wait([self._task], timeout=CLOSING_SECONDS)
        if running:
            log.error("step_hangs", seconds=CLOSING_SECONDS, reason="closing without its end")
            self._task.cancel()
        return not running

    # What callers see

    @property
    def is_started(self) -> bool:
        return self._parts is not None and not self._is_closed

    @property
    def config(self) -> EngineConfig:
        return self._config

    @property
    def info(self) -> ModelInfo:
        return self._started().executor.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self._started().tokenizer

    @property
    def max_model_len(self) -> int:
        self._started()
        return self._max_model_len

    @property
    def model_name(self) -> str:
        return self._config.served_model_name or self.info.name

    def default_sampling_params(self, **given: Any) -> SamplingParams:
        return default_sampling_params(self._config, self.info, given)

    async def submit(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        **fields: Any,
    ) -> OutputStream:
        self._home.check()
        self._check_accepting()
        arrival_time = time.monotonic()
        checked = await check(
            prompt,
            sampling_params or self.default_sampling_params(),
            (options or RequestOptions()).with_changes(**fields),
            tokenizer=self.tokenizer,
            info=self.info,
            config=self._config,
            max_model_len=self._max_model_len,
        )
        stream = await self.queue(checked, arrival_time)
        stream.prompt = prompt if isinstance(prompt, str) else None
        return stream

    async def queue(
        self, checked: CheckedRequest, arrival_time: float, *, number: int = 0
    ) -> OutputStream:
        """Queue a request after the checks that only this engine can make. `number`: see
        OutputStream.

        Raises what `submit` raises.
        """
        checked.refuse_stale(self.info, self._max_model_len)
        params, options = checked.params, checked.options
        processors = self._started().plugins.processors_of(params)
        ignored_keywords = await self._check_grammar(params)
        loop = self._check_accepting()  # the engine may have been closed meanwhile
        requests = make_requests(
            checked,
            request_id=loop.free_id(
                options.request_id or f"request-{uuid.uuid4().hex}", options.prompt_index, params.n
            ),
            seed=self._random.getrandbits(63) if params.seed is None else params.seed & (2**63 - 1),
            arrival_time=arrival_time,
            info=self.info,
            config=self._config,
            processors=processors,
        )
        stream = self._make_stream(requests, ignored_keywords)
        stream.number = number
        loop.add(requests, stream)
        return stream

    async def abort(self, request_id: str) -> None:
        self._home.check()
        self._running_loop().abort(request_id)

    def load(self) -> Load:
        loop = self._running_loop()
        return Load(
            num_running=loop.core.num_running,
            num_waiting=loop.core.num_waiting,
            kv_cache_usage=loop.core.kv_cache_usage,
            stalled_for=loop.stalled_for,
            expected_step_seconds=loop.expected_step_seconds,
            is_alive=loop.death is None and not self._is_closed,
            is_draining=self._is_draining,
        )

    def live_requests(self) -> tuple[LiveRequest, ...]:
        return self._running_loop().core.describe_live(time.monotonic())

    def plugins(self) -> tuple[PluginInfo, ...]:
        return self._started().plugins.plugins()

    def hook_stats(self) -> tuple[HookStats, ...]:
        return self._started().plugins.hook_stats()

    def render_metrics(self) -> bytes:
        return self._started().plugins.render_metrics()

    # Inside

    def _on_device(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._device, function, *args)

    def _started(self) -> EngineParts:
        if self._parts is None:
            raise EngineStoppedError(
                "the engine is not started: use `async with` or call `await start()`"
            )
        return self._parts

    def _running_loop(self) -> StepLoop:
        self._started()
        assert self._loop is not None
        return self._loop

    def _check_accepting(self) -> StepLoop:
        loop = self._running_loop()
        if loop.death is not None:
            raise stopped_by(loop.death)
        if self._is_draining or self._is_closed:
            raise EngineStoppedError(DRAINING)
        return loop

    async def _check_grammar(self, params: SamplingParams) -> tuple[str, ...]:
        if params.grammar is None:
            return ()
        checker = self._started().grammars
        if checker is None:
            raise InvalidRequestError("this engine has no grammar backend", param="grammar")
        return await checker.check(params.grammar)

    def _make_stream(
        self, requests: list[Request], ignored_keywords: tuple[str, ...]
    ) -> OutputStream:
        params = requests[0].sampling_params
        make_detokenizer = self.tokenizer.detokenizer
        return OutputStream(
            requests=requests,
            completions=[
                Completion(
                    i, params, make_detokenizer(skip_special_tokens=params.skip_special_tokens)
                )
                for i in range(params.n)
            ],
            abort=self._running_loop().abort_stream,
            ignored_keywords=ignored_keywords,
            home=self._home,
        )


def _close_executor(parts: EngineParts) -> None:
    try:
        parts.executor.close()
    except CONTAINED as error:
        plugins = list(parts.plugins.foreign_computing)
        log.error("executor_failed", method="close", plugins=plugins, exc_info=error)


def fit_max_model_len(config: EngineConfig, info: ModelInfo) -> int:
    """The maximum sequence length that the configuration, the model and the KV cache allow.

    Raises ConfigError if the configuration asks for more than model or KV cache allow.
    """
    wanted = config.max_model_len or info.max_model_len
    if wanted > info.max_model_len:
        raise ConfigError(
            f"--max-model-len is {wanted}, but the model was made for {info.max_model_len} tokens"
        )
    step_tokens = config.token_budget(info.device)
    longest = longest_sequence(
        wanted,
        info.num_blocks,
        block_size=info.block_size,
        windows=info.kv_windows,
        step_tokens=step_tokens,
    )
    if config.max_model_len is not None and longest < wanted:
        raise ConfigError(
            f"--max-model-len is {wanted}, but the KV cache holds only {longest} tokens "
            f"({info.num_blocks} blocks of {info.block_size}); lower it, or give the cache more "
            "memory"
        )
    least = min(wanted, LEAST_CONTEXT)
    if config.kv_cache_memory is not None and longest < least:
        num_blocks = blocks_held(
            least, block_size=info.block_size, windows=info.kv_windows, step_tokens=step_tokens
        )
        # With several ranks, kv_bytes_per_block is the sum over ranks, and the flag is for each.
        own_bytes = -(-config.kv_cache_memory // info.num_blocks)
        block_bytes = min(info.kv_bytes_per_block, own_bytes)
        raise ConfigError(
            f"--kv-cache-memory {config.kv_cache_memory} holds only {longest} tokens; raise it to "
            f"{num_blocks * block_bytes}, which holds {least} tokens, or more"
        )
    return longest


def make_core(
    config: EngineConfig, info: ModelInfo, plugins: PluginHost, max_model_len: int
) -> EngineCore:
    """Make the engine's state machine for a model and its KV cache."""
    token_budget = config.token_budget(info.device)
    return EngineCore(
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        num_host_blocks=info.num_host_blocks,
        kv_windows=info.kv_windows,
        max_model_len=max_model_len,
        limits=StepLimits(
            max_num_seqs=min(config.max_num_seqs, token_budget),
            max_num_batched_tokens=token_budget,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
            watermark_blocks=int(config.watermark * info.num_blocks),
            enable_prefix_caching=config.enable_prefix_caching,
            max_num_scored_tokens=_max_num_scored_tokens(info, token_budget),
        ),
        plugins=plugins,
        max_num_queued_reqs=config.max_num_queued_reqs,
        max_inflight=2 if config.async_scheduling else 1,
        num_stages=info.num_stages,
        speculation=_limit_drafts(plugins, info),
    )


def _max_num_scored_tokens(info: ModelInfo, token_budget: int) -> int:
    """Maximum number of prompt tokens that a step scores.

    Their logits fit into memory, and the step takes no longer than one that computes a whole token
    budget and scores nothing.
    """
    in_memory = SCORING_BYTES // (4 * info.vocab_size)
    to_score = info.vocab_size * (info.hidden_size + SCORING_WIDTH)
    to_compute = max(0, info.num_parameters - info.vocab_size * info.hidden_size)
    in_time = token_budget * to_compute // (to_compute + to_score)
    return max(1, min(in_memory, in_time if to_compute else token_budget))


def _limit_drafts(plugins: PluginHost, info: ModelInfo) -> SpeculationLimits | None:
    """The limits on drafts. With worker processes, only a worker knows whether drafts need
    lookahead, and reports it in `info`."""
    limits = plugins.speculation_limits
    if limits is None or not info.drafts_need_lookahead:
        return limits
    return replace(limits, needs_lookahead=True)
