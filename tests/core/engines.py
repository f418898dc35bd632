"""Small engines on the simulated executor, for the tests of the core."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from tokenmill.core import kinds
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.hookspecs import hookimpl
from tokenmill.core.contract.policy import StepView
from tokenmill.core.contract.registry import Registry
from tokenmill.core.engine.blocks.pool import hash_root
from tokenmill.core.engine.engine_core import EngineCore
from tokenmill.core.engine.media import MediaPool
from tokenmill.core.engine.request import PromptGroup, Request
from tokenmill.core.engine.step import StepLimits
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.outputs import FinishReason
from tokenmill.core.requests.request_options import RequestOptions
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.testing.engine_driver import EngineDriver
from tokenmill.testing.simulated.drafting import DraftingSettings
from tokenmill.testing.simulated.executor import SimulatedExecutor, expected_tokens
from tokenmill.testing.simulated.pictures import BYTES_PER_TOKEN, with_rows


def seed_of(name: str, index: int = 0) -> int:
    """What `Bench.add` gives to a request: the same in every run, so that its tokens are, too."""
    return zlib.crc32(f"{name}/{index}".encode()) & 0xFFFF


class FunctionScheduler:
    """A scheduler that is one function."""

    def __init__(self, function: Callable[[StepView], None]) -> None:
        self._function = function

    @hookimpl
    def schedule(self, step: StepView) -> object:
        self._function(step)
        return True


class FunctionPlugin:
    """Registers a function as the scheduler "custom"."""

    TOKENMILL_API = (1, 1)

    def __init__(self, function: Callable[[StepView], None]) -> None:
        self._function = function

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(kinds.SCHEDULER, "custom", lambda: FunctionScheduler(self._function))


def wild(rng: random.Random) -> Callable[[StepView], None]:
    """A policy that does everything wrong that it can: order, repeats, amounts, exceptions."""

    def schedule(step: StepView) -> None:
        requests = [*step.running, *step.waiting]
        rng.shuffle(requests)
        for request in requests:
            if rng.random() < 0.05:
                raise RuntimeError("planted")
            if rng.random() < 0.2:
                step.limit(request, rng.randint(0, 3))
            step.schedule(request, rng.choice([None, None, 1, 3, 0, -1]))
            if rng.random() < 0.1:
                step.schedule(request)

    return schedule


class Bench(EngineDriver):
    """A small engine on the simulated executor, whose requests are written in one line."""

    def __init__(
        self,
        *,
        num_blocks: int = 16,
        block_size: int = 4,
        num_host_blocks: int = 0,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        enable_prefix_caching: bool = True,
        max_inflight: int = 1,
        num_stages: int = 1,
        max_model_len: int = 2**20,
        max_num_queued_reqs: int = 1000,
        watermark_blocks: int = 0,
        kv_windows: Sequence[int | None] = (None,),
        drafting: DraftingSettings | None = None,
        schedule: Callable[[StepView], None] | None = None,
        plugins: Sequence[object] = (),
        step_log_size: int = 1 << 20,
        media_bytes: int = 0,
        **config: Any,
    ) -> None:
        extra = [*plugins, FunctionPlugin(schedule)] if schedule else plugins
        if schedule:
            config["scheduler"] = "custom"
        if drafting:
            config["draft_length"] = drafting.draft_length
        self.plugins = PluginHost.load(EngineConfig(**config), extra=extra)
        executor = SimulatedExecutor(
            num_blocks=num_blocks,
            block_size=block_size,
            num_host_blocks=num_host_blocks,
            kv_windows=kv_windows,
            drafting=drafting,
            media_bytes=media_bytes,
        )
        core = EngineCore(
            num_blocks=num_blocks,
            block_size=block_size,
            num_host_blocks=num_host_blocks,
            kv_windows=kv_windows,
            max_model_len=max_model_len,
            limits=StepLimits(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                long_prefill_token_threshold=0,
                watermark_blocks=watermark_blocks,
                enable_prefix_caching=enable_prefix_caching,
            ),
            plugins=self.plugins,
            max_num_queued_reqs=max_num_queued_reqs,
            max_inflight=max_inflight,
            num_stages=num_stages,
            speculation=None if drafting is None else drafting.limits,
            step_log_size=step_log_size,
            media=MediaPool(media_bytes, BYTES_PER_TOKEN) if media_bytes else None,
        )
        super().__init__(core, executor)
        self._caching = enable_prefix_caching
        self._kv_windows = kv_windows

    def add(
        self, prompt: Sequence[int], max_tokens: int, *, n: int = 1, **fields: Any
    ) -> list[Request]:
        """Queue a request; its ids are "0", "1", ... or "0/0", "0/1", ..."""
        name = str(len({i.split("/")[0] for i in self.requests}))
        group = PromptGroup() if n > 1 else None
        requests = [
            Request(
                request_id=name if n == 1 else f"{name}/{i}",
                prompt_token_ids=tuple(prompt),
                sampling_params=fields.get("params", SamplingParams(n=n)),
                max_tokens=max_tokens,
                arrival_time=self.now,
                seed=seed_of(name, i),
                options=RequestOptions(
                    priority=fields.get("priority", 0), cache_salt=fields.get("salt") or None
                ),
                deadline=fields.get("deadline"),
                eos_token_ids=fields.get("eos_token_ids", ()),
                cache_root=hash_root("m", fields.get("salt", ""), "" if self._caching else name),
                publishes=self._caching or n > 1,
                group=group,
                media=fields.get("media", ()),
            )
            for i in range(n)
        ]
        self.queue(requests)
        return requests

    def check_tokens(self) -> None:
        """Every request got exactly the tokens that it would have got alone."""
        for name, request in self.requests.items():
            got = self.tokens[name]
            prompt = with_rows(request.prompt_token_ids, request.media)
            right = expected_tokens(prompt, len(got), request.seed, 1000, self._kv_windows)
            assert got == right, name
            if self.reasons.get(name) is FinishReason.LENGTH:
                assert len(got) == request.max_tokens, name
