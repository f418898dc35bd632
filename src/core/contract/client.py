"""The engine as the API and embedders see it: small enough to stand in another process one day."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..config import EngineConfig
from ..interfaces import ModelInfo, Tokenizer
from ..outputs import RequestOutput
from ..request_options import RequestOptions
from ..sampling_params import SamplingParams
from .plugin_info import HookStats, PluginInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the engine is at this moment."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    """Part of the KV blocks that live requests hold, 0 to 1."""
    stalled_for: float
    """Seconds since the last completed step while there was work; 0 when idle."""
    is_alive: bool
    """False once the engine cannot compute any more."""
    is_draining: bool


class RequestStream(Protocol):
    """The outputs of one accepted request; to close it early is to abort the request."""

    request_id: str
    """The id that was asked for; with a suffix if a live request had it."""
    prompt_token_ids: tuple[int, ...]

    def __aiter__(self) -> AsyncIterator[RequestOutput]: ...
    async def __anext__(self) -> RequestOutput: ...
    async def aclose(self) -> None: ...


class EngineClient(Protocol):
    """What `tokenmill.AsyncEngine` offers once it is started."""

    @property
    def config(self) -> EngineConfig: ...
    @property
    def info(self) -> ModelInfo: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def model_name(self) -> str:
        """The name that the API and metrics show."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest sequence, prompt and output together, that this engine accepts."""
        ...

    def default_sampling_params(self, **given: object) -> SamplingParams:
        """The model's sampling defaults, with `given` on top (a value of None means: not given)."""
        ...

    async def submit(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        **fields: Any,
    ) -> RequestStream:
        """Validate, tokenize and queue a request; returns once it is accepted.

        `fields` are those of RequestOptions, on top of `options`: `submit(prompt, priority=1)`.
        Raises InvalidRequestError, OverloadedError or EngineStoppedError; nothing is held then.
        """
        ...

    def generate(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        **fields: Any,
    ) -> AsyncIterator[RequestOutput]:
        """`submit`, then the stream. Breaking off the iteration aborts the request.

        The stream raises RequestFailedError if the request could not be finished.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request early, by its stream's id, with finish_reason "abort". Unknown ids are
        ignored."""
        ...

    def load(self) -> Load: ...
    def plugins(self) -> tuple[PluginInfo, ...]:
        """Every installed plugin, enabled or not, in order, with what it provides."""
        ...

    def hook_stats(self) -> tuple[HookStats, ...]:
        """Calls, seconds and failures of every plugin in each of its hooks, since the start."""
        ...

    def render_metrics(self) -> bytes:
        """The metrics of this engine in Prometheus's text format."""
        ...

    async def drain(self, timeout: float | None = None) -> None:
        """Take no new requests; wait for the accepted ones, abort them after `timeout` seconds."""
        ...

    async def close(self) -> None:
        """Abort what is left and give back the device. Safe to call twice."""
        ...
