"""Histograms of the Prometheus metrics: vLLM's names and buckets, counted without locks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from ...plugin import FinishedRequest

_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1),
    *(2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1),
    *(2.5, 5, 7.5, 10, 20, 40, 80),
)
_PER_REQUEST = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
_ITERATION = (1, 8, *(2**power for power in range(4, 15)))


class Histogram:
    """Counts values per bucket. A value's bucket is the first whose upper bound is not below it."""

    __slots__ = ("_bounds", "_counts", "_sum", "help")

    def __init__(self, help: str, bounds: Iterable[float]) -> None:
        self.help = help
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float | None) -> None:
        """Count one value. None stands for a stage that was never reached, and is not counted."""
        if value is not None:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def sample(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by upper bound, as Prometheus needs them, and the sum of all values."""
        bounds = [*map(str, map(float, self._bounds)), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self._counts)), strict=True)), self._sum


def make_histograms(max_model_len: int) -> dict[str, Histogram]:
    """Every histogram by its name, without prefix."""
    lengths = _one_two_five(max_model_len)
    return {
        "time_to_first_token_seconds": Histogram(
            "Seconds from arrival to the first token.", _FIRST_TOKEN
        ),
        "inter_token_latency_seconds": Histogram("Seconds between two tokens.", _PER_TOKEN),
        "request_time_per_output_token_seconds": Histogram(
            "Seconds per token after the first, averaged over a request.", _PER_TOKEN
        ),
        "e2e_request_latency_seconds": Histogram("Seconds from arrival to end.", _PER_REQUEST),
        "request_queue_time_seconds": Histogram(
            "Seconds from arrival to the first step.", _PER_REQUEST
        ),
        "request_prefill_time_seconds": Histogram(
            "Seconds from the first step to the first token.", _PER_REQUEST
        ),
        "request_decode_time_seconds": Histogram(
            "Seconds from the first token to the last.", _PER_REQUEST
        ),
        "request_inference_time_seconds": Histogram(
            "Seconds from the first step to the last token.", _PER_REQUEST
        ),
        "iteration_tokens_total": Histogram("Tokens per step, prompt and generated.", _ITERATION),
        "request_prompt_tokens": Histogram("Prompt tokens of a request.", lengths),
        "request_generation_tokens": Histogram("Generated tokens of a request.", lengths),
        "request_max_num_generation_tokens": Histogram(
            "Generated tokens of the longest choice of a request.", lengths
        ),
        "request_params_n": Histogram("Parameter n of a request.", (1, 2, 5, 10, 20)),
        "request_params_max_tokens": Histogram("Parameter max_tokens of a request.", lengths),
        "request_prefill_kv_computed_tokens": Histogram(
            "Prompt tokens of a request that did not come from the prefix cache.", lengths
        ),
        "request_num_preemptions": Histogram(
            "Times that a request was preempted.", (1, 2, 3, 4, 5, 10, 20)
        ),
    }


def measure(request: FinishedRequest) -> dict[str, float | None]:
    """The values of a finished choice, by the name of their histogram."""
    prefill, decode = request.prefill_time, request.decode_time
    both = None if prefill is None or decode is None else prefill + decode
    intervals = request.num_generation_tokens - 1
    return {
        "e2e_request_latency_seconds": request.e2e_latency,
        "request_queue_time_seconds": request.queue_time,
        "request_prefill_time_seconds": prefill,
        "request_decode_time_seconds": decode,
        "request_inference_time_seconds": both,
        "request_time_per_output_token_seconds": (
            decode / intervals if decode is not None and intervals > 0 else None
        ),
        "request_prompt_tokens": request.num_prompt_tokens,
        "request_generation_tokens": request.num_generation_tokens,
        "request_params_max_tokens": request.max_tokens,
        "request_prefill_kv_computed_tokens": (
            request.num_prompt_tokens - request.num_cached_tokens
        ),
        "request_num_preemptions": request.num_preemptions,
    }


class PromptTally:
    """The values that vLLM counts once per prompt, when the last of its choices has ended."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], tuple[int, int]] = {}
        """By request id and index of the prompt: choices that have ended, and the longest."""

    def count(self, request: FinishedRequest) -> dict[str, float]:
        """The values by the name of their histogram; none before the last choice."""
        key = request.request_id, request.options.prompt_index
        num_ended, longest = self._open.pop(key, (0, 0))
        longest = max(longest, request.num_generation_tokens)
        if num_ended + 1 < request.n:
            self._open[key] = num_ended + 1, longest
            return {}
        return {"request_params_n": request.n, "request_max_num_generation_tokens": longest}


def _one_two_five(highest: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... up to `highest`."""
    series = (digit * 10**power for power in range(len(str(highest))) for digit in (1, 2, 5))
    return [value for value in series if value <= highest]
