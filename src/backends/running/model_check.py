"""Compares a loaded model's first steps with the model's own forward pass.

Shape suffixes: t tokens, r rows that get logits, v vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigError
from ...core.log import get_logger
from ...core.plan import Grant, RequestStart, StepPlan
from ...core.sampling_params import SamplingParams
from ..models.base import Model, ReferenceLogits, reference_logits_of
from ..state.input_batch import InputBatch
from ..weights.config.fields import one_line
from .model_parts import ModelParts
from .runner import LayeredModel, ModelRunner

log = get_logger("model")

_LENGTHS = (6, 4, 3)
"""Tokens of the prompts. With one more token, each fits into the smallest block."""
_SECONDS = 5.0
_FRACTION = 0.1
_MAX_ERROR = {torch.float32: 1e-2}
_MAX_ERROR_OF_16_BITS = 0.16
"""The largest error that rounding may explain, relative to the logits' spread. In bfloat16 it is
0.01 for most models. Rounding may also choose another expert, which changes a prompt's logits
wholly, but not those of all: 0.14 was seen. Models that attend in another way than the engine had
0.18 to 1.4."""


def check_model(parts: ModelParts, config: EngineConfig, load_seconds: float) -> None:
    """Compute short prompts and a decode of each, and compare the logits with the reference.

    It takes at most 5 seconds, or 10 % of `load_seconds` if that is more; then it ends with the
    pass that runs. Raises ConfigError if the logits differ.
    """
    reference = reference_logits_of(parts.decoder)
    if reference is None:
        return
    if config.skip_model_check or parts.spec.kv_cache_dtype is not None:
        reason = "--skip-model-check" if config.skip_model_check else "8-bit KV cache"
        log.warning("model_check_skipped", reason=reason)
        return
    started, limit = time.monotonic(), max(_SECONDS, _FRACTION * load_seconds)
    try:
        error = _compare(parts, reference, lambda: time.monotonic() - started > limit)
    except Exception as failure:  # any model of another library
        raise _refusal(parts.decoder, f"fails in its first steps: {failure}") from failure
    seconds = round(time.monotonic() - started, 1)
    if error is None:
        log.warning("model_check_stopped", seconds=seconds)
        return
    if error > _MAX_ERROR.get(parts.spec.dtype, _MAX_ERROR_OF_16_BITS):
        raise _refusal(
            parts.decoder, f"computes other logits than its own forward pass (error {error:.2g})"
        )
    log.info("model_checked", seconds=seconds, error=float(f"{error:.1g}"))


def _refusal(model: Model, reason: str) -> ConfigError:
    return ConfigError(
        f"{model.config.architecture} {one_line(reason)}. It is not supported; "
        "--skip-model-check serves it anyway"
    )


@torch.inference_mode()
def _compare(
    parts: ModelParts, reference: ReferenceLogits, is_late: Callable[[], bool]
) -> float | None:
    """Return the relative error of the logits, the larger of both steps'; None if it gets late.

    A step's error is that of its worst prompt in float32, and of its best with fewer bits.
    """
    model = parts.decoder
    cache = parts.allocate_cache(len(_LENGTHS) * len(parts.groups.windows), 0)
    recorded = _Recorded(LayeredModel(model, parts.attention, cache))
    runner = ModelRunner(model, parts.attention, cache, recorded)
    prompts = [
        torch.arange(1, 1 + min(length, model.config.max_position_embeddings - 1))
        .mul(7)
        .remainder(model.config.vocab_size)
        .tolist()
        for length in _LENGTHS
    ]
    prefill, decode = _plans(prompts, len(parts.groups.windows))
    sampled = [ids[0] if ids else 0 for ids in runner.run(prefill).token_ids]
    if is_late():
        return None
    runner.run(decode)
    first_rv, second_rv = recorded.logits_of_steps
    prefills: list[float] = []
    decodes: list[float] = []
    for row, (prompt, token) in enumerate(zip(prompts, sampled, strict=True)):
        if is_late():
            return None
        own_tv = reference(torch.tensor([*prompt, token], device=parts.spec.device))
        prefills.append(_error(first_rv[row], own_tv[-2]))
        decodes.append(_error(second_rv[row], own_tv[-1]))
    if parts.spec.dtype == torch.float32:
        return max(prefills + decodes)
    return max(min(prefills), min(decodes))


def _plans(prompts: Sequence[Sequence[int]], num_groups: int) -> tuple[StepPlan, StepPlan]:
    """The prompts in one step, and then a decode of each. Each has a block in each group."""
    starts, prefills, decodes = [], [], []
    for index, prompt in enumerate(prompts):
        first = index * num_groups
        starts.append(
            RequestStart(
                engine_id=str(index),
                token_ids=tuple(prompt),
                num_prompt_tokens=len(prompt),
                sampling_params=SamplingParams(temperature=0.0),
                seed=0,
                stop_token_ids=(),
            )
        )
        prefills.append(
            Grant(
                engine_id=str(index),
                start=0,
                num_tokens=len(prompt),
                new_block_ids=tuple((first + group,) for group in range(num_groups)),
                samples=True,
            )
        )
        decodes.append(
            Grant(
                engine_id=str(index),
                start=len(prompt),
                num_tokens=1,
                new_block_ids=(),
                samples=True,
            )
        )
    return (
        StepPlan(step_id=0, starts=tuple(starts), grants=tuple(prefills)),
        StepPlan(step_id=1, starts=(), grants=tuple(decodes)),
    )


class _Recorded:
    """A StepModel that keeps its logits."""

    def __init__(self, inner: LayeredModel) -> None:
        self._inner = inner
        self.sampling = inner.sampling
        self.logits_of_steps: list[torch.Tensor] = []

    def logits(self, batch: InputBatch) -> torch.Tensor:
        """See StepModel."""
        logits_rv = self._inner.logits(batch)
        self.logits_of_steps.append(logits_rv.clone())
        return logits_rv

    def hidden_states(self) -> torch.Tensor:
        """See StepModel."""
        return self._inner.hidden_states()


def _error(own_v: torch.Tensor, expected_v: torch.Tensor) -> float:
    """The size of the difference, relative to that of the expected logits around their mean.

    Infinity if a number is not finite.
    """
    spread = (expected_v - expected_v.mean()).norm().clamp(min=1e-6)
    error = float((own_v - expected_v).norm() / spread)
    return error if math.isfinite(error) else math.inf
