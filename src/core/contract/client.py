"""The engine as the API, plugins and embedding programs see it.

The interface is small, because the engine may be in another process.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..config import EngineConfig
from ..interfaces import ChatMessage, ModelInfo, Tokenizer
from ..outputs import RequestOutput
from ..requests.given_images import Prompt
from ..requests.request_options import RequestOptions
from ..requests.sampling_params import SamplingParams
from .activity import Activity, LiveRequest
from .explanation import Explanation
from .image_reading import ImageReading
from .plugin_info import HookStats, PluginInfo
from .trace import Trace

STALL_FACTOR = 3
"""A step that takes this many times as long as expected, and a time limit more, is stalled."""

STALL_SECONDS = 1.5
"""Default of that time limit. A hang is found within 2 seconds more than STALL_FACTOR steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of the engine at this moment."""

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    """Fraction of the KV blocks that live requests hold, 0 to 1."""
    stalled_for: float
    """Seconds since the last completed step while there was work, without those in which an engine
    process waited for a CPU; 0 when idle."""
    expected_step_seconds: float = 0.0
    """Maximum seconds that the current step is expected to take, estimated from earlier steps."""
    is_alive: bool
    """False once the engine can no longer compute."""
    is_draining: bool
    """True once the engine finishes accepted requests and takes no new ones."""
    is_restarting: bool = False
    """True while another engine is being started in the place of one that failed."""
    replicas: tuple[Load, ...] = ()
    """With --data-parallel-size: the load of each engine process, in order of index. The other
    fields are computed from the engines that serve: sums, the mean of `kv_cache_usage`, and the
    shortest stall."""

    def is_stalled(self, timeout: float) -> bool:
        """Whether there is work but no step for too long: STALL_FACTOR times the expected duration
        of a step, and `timeout` seconds more."""
        return self.stalled_for > timeout + STALL_FACTOR * self.expected_step_seconds


class RequestStream(Protocol):
    """The outputs of one accepted request. Closing the stream early aborts the request."""

    request_id: str
    """The requested id, with a suffix if a live request already had it."""
    prompt_token_ids: tuple[int, ...]
    ignored_keywords: tuple[str, ...]
    """Keywords of the request's grammar that have no effect, because it is not strict."""

    def __aiter__(self) -> AsyncIterator[RequestOutput]: ...
    async def __anext__(self) -> RequestOutput: ...
    async def aclose(self) -> None: ...


class EngineClient(Protocol):
    """The interface of `tokenmill.AsyncEngine`. Before the start, only the first three work."""

    async def start(self) -> None:
        """Load the model and begin to serve. Does nothing if the engine is started.

        Raises ConfigError when the configuration, the model or a plugin cannot work, and
        WrongContextError without an asyncio event loop. Then the engine is closed.
        """
        ...

    @property
    def is_started(self) -> bool:
        """Whether the engine has been started, and not closed since then."""
        ...

    @property
    def config(self) -> EngineConfig:
        """The settings with which the engine was made."""
        ...

    @property
    def info(self) -> ModelInfo:
        """Facts about the loaded model and its KV cache."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, with its chat template."""
        ...

    @property
    def images(self) -> ImageReading:
        """Reads the images of requests."""
        ...

    @property
    def model_name(self) -> str:
        """Name of the model in the API and in metrics."""
        ...

    @property
    def max_model_len(self) -> int:
        """Maximum number of tokens of a request: prompt and output together."""
        ...

    def default_sampling_params(self, **given: object) -> SamplingParams:
        """The model's sampling defaults, overridden by `given`. None counts as not given."""
        ...

    async def submit(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        **fields: Any,
    ) -> RequestStream:
        """Validate, tokenize and queue a request; returns once it is accepted.

        `prompt`: a text, or token ids, also as in vLLM: `{"prompt": "Hi"}` or
        `{"prompt_token_ids": [1, 2]}`, with images
        `{"prompt": "<image>Hi", "multi_modal_data": {"image": image}}`: an image of Pillow, the
        bytes of a file, or a list of them, one for each placeholder. `sampling_params` None:
        `default_sampling_params()`. Read the outputs with `async for` from the stream that is
        returned, and close it with `aclose` to abort the request. `fields` are fields of
        RequestOptions and override `options`: `submit(prompt, priority=1)`.

        Raises InvalidRequestError, OverloadedError or EngineStoppedError; then the engine keeps
        nothing of the request. Raises WrongContextError in another event loop or process.
        """
        ...

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        options: RequestOptions | None = None,
        **fields: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Submit a request and iterate over its outputs.

        The arguments are those of `submit`. Each output has all of the text so far, or only the new
        part with `SamplingParams(output_kind="delta")`. Leaving the iteration aborts the request.
        Raises what `submit` raises, RequestFailedError if the request could not be finished, and
        EngineStoppedError if the engine is lost.
        """
        ...

    def chat(
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
        """Like `generate`, for a conversation in the model's chat template.

        `messages` are those of one conversation, as in OpenAI's API:
        `{"role": "user", "content": "Hi"}`. A content may also be a list of parts, with images of
        Pillow or bytes: `{"type": "image", "image": image}`. `add_generation_prompt` ends the
        prompt where the answer begins. With `continue_final_message` (then `add_generation_prompt`
        must be False) the answer continues the last message. `chat_template_kwargs` are variables
        of the template, for example `{"enable_thinking": False}`. Raises what `generate` raises,
        and InvalidRequestError without a chat template, or for messages that it refuses.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request early, with finish_reason "abort". Unknown ids are ignored.

        `request_id` is the id of the request's stream.
        """
        ...

    async def refresh(self) -> None:
        """Bring the answers of the methods below up to date, if the engine is in another process.

        Does not wait for an engine that hangs: then they answer what was known last.
        """
        ...

    async def reset_prefix_cache(self) -> bool:
        """Forget the prompts of earlier requests: the next ones are computed, not found in the
        prefix cache.

        Blocks that live requests hold stay in the cache. Returns whether it is empty now, in all
        engines: False if there are such blocks, or if an engine does not answer.
        """
        ...

    def load(self) -> Load:
        """The load of the engine at this moment."""
        ...

    def live_requests(self) -> tuple[LiveRequest, ...]:
        """The requests that have not ended, in order of arrival."""
        ...

    async def explain(self, request_id: str) -> tuple[Explanation, ...]:
        """Explain where the time of a live or a recent request went: one explanation per choice.

        Empty for an id that the step log does not have, or no longer has, and without a step log
        (`step_log_size` 0).
        """
        ...

    async def slowest(self, count: int = 20) -> tuple[Explanation, ...]:
        """The explanations of the live and recent requests with the longest latency, the longest
        first."""
        ...

    async def activity(self, after_step: int = -1) -> tuple[Activity, ...]:
        """The activity of each engine, with its last steps after a step. Engines that hang or
        are being started are left out."""
        ...

    async def measure_regions(self, seconds: float) -> None:
        """Measure the regions of each step in the next `seconds`, for `trace`.

        A second call replaces the first one; 0 seconds end the measurement. Only steps that run as
        one native call have regions. An engine that restarts does not continue the measurement.
        """
        ...

    async def trace(self, seconds: float) -> tuple[Trace, ...]:
        """The steps and the requests of the last seconds in each engine, as far as its step log has
        them. Engines that hang or are being started are left out."""
        ...

    def plugins(self) -> tuple[PluginInfo, ...]:
        """Every installed plugin, enabled or not, in order, with what it provides."""
        ...

    def hook_stats(self) -> tuple[HookStats, ...]:
        """Calls, seconds and failures since the start, per plugin and hook."""
        ...

    def render_metrics(self) -> bytes:
        """The metrics of this engine in Prometheus's text format."""
        ...

    async def drain(self, timeout: float | None = None) -> None:
        """Accept no new requests, and wait until the accepted ones end.

        After `timeout` seconds the remaining requests are aborted; None waits without a limit.
        """
        ...

    async def close(self) -> None:
        """Abort the remaining requests and free the device. Safe to call twice."""
        ...
