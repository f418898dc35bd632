"""An executor that computes nothing, and predicts each step's duration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..core.config import EngineConfig
from ..core.interfaces import ModelInfo
from ..core.plan import StepPlan, StepResult
from .step_time import StepTimeModel, StepWork

TOKEN = 0
"""The token id of every sampled token."""


class TimedExecutor:
    """Returns at once, and predicts how long a real executor would take."""

    def __init__(self, info: ModelInfo, model: StepTimeModel) -> None:
        self.info = info
        self.step_seconds = 0.0
        """Predicted time of the last step, from the commit before it to its own."""
        self._model = model

    def run(self, plan: StepPlan) -> StepResult:
        """Return the same token for each grant that samples, and set `step_seconds`."""
        self.step_seconds = self._model.step_seconds(StepWork.of(plan))
        tokens = tuple((TOKEN,) if grant.samples else () for grant in plan.grants)
        return StepResult(step_id=plan.step_id, token_ids=tokens)

    def decode_seconds(
        self, num_requests: int, num_computed_tokens: int, num_steps: int
    ) -> Iterator[float]:
        """Predict the seconds of each of several steps that decode the same requests. Before the
        first step, the requests have `num_computed_tokens` computed tokens together."""
        for number in range(1, num_steps + 1):
            work = StepWork(
                num_tokens=num_requests,
                num_requests=num_requests,
                num_sampled=num_requests,
                num_context_tokens=num_computed_tokens + number * num_requests,
            )
            yield self._model.step_seconds(work)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def size_kv_cache(measured: ModelInfo, config: EngineConfig, *, swaps: bool) -> ModelInfo:
    """The measured model with the KV cache sizes of `config`; sizes it leaves open stay."""
    token_bytes = measured.kv_bytes_per_block // measured.block_size
    block_bytes = token_bytes * config.block_size
    num_blocks = config.num_gpu_blocks_override
    if num_blocks is None:
        room = config.kv_cache_memory or measured.num_blocks * measured.kv_bytes_per_block
        num_blocks = max(1, room // block_bytes)
    host_room = measured.num_host_blocks * measured.kv_bytes_per_block
    if config.swap_space is not None:
        host_room = int(config.swap_space * 2**30)
    return replace(
        measured,
        block_size=config.block_size,
        num_blocks=num_blocks,
        num_host_blocks=host_room // block_bytes if swaps else 0,
        kv_bytes_per_block=block_bytes,
        eos_token_ids=(),
    )
