"""Compares a loaded model's first steps with the model's own forward pass.

Shape suffixes: b prompts, n tokens of a prompt, t tokens of all prompts, r rows that get logits, v
vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from ....core.config import EngineConfig
from ....core.errors import ConfigError
from ....core.log import get_logger
from ....core.plan import Grant, RequestStart, StepPlan
from ....core.requests.sampling_params import SamplingParams
from ...models.base import REFERENCE, Model, Reference
from ...state.input_batch import InputBatch
from ...weights.config.fields import one_line
from ..layered_model import LayeredModel
from ..parts.model_parts import ModelParts
from ..runner import ModelRunner
from .followed_model import FollowedModel

log = get_logger("model")

_NUM_PROMPTS = 2
_NUM_TOKENS = 8
"""The largest number of tokens of a prompt, which has one block."""
SECONDS = 5.0
"""The duration of a check, unless the fraction of the time to load is larger."""
_FRACTION = 0.1


def check_model(parts: ModelParts, config: EngineConfig, load_seconds: float) -> None:
    """Compute short prompts, and decode each of their tokens; compare both with the reference.

    It takes at most 5 seconds, or 10 % of `load_seconds` if that is more; then it ends with the
    pass that runs. Raises ConfigError if they differ.
    """
    reference = REFERENCE.of(parts.decoder)
    if reference is None:
        return
    if config.skip_model_check or parts.spec.kv_cache_dtype is not None:
        reason = "--skip-model-check" if config.skip_model_check else "8-bit KV cache"
        log.warning("model_check_skipped", reason=reason)
        return
    started, limit = time.monotonic(), max(SECONDS, _FRACTION * load_seconds)
    try:
        error = compare_first_steps(parts, reference, lambda: time.monotonic() - started > limit)
    except Exception as failure:  # any model of another library
        raise _refusal(parts.decoder, f"fails in its first steps: {failure}") from failure
    seconds = round(time.monotonic() - started, 1)
    if error is None:
        log.warning("model_check_stopped", seconds=seconds)
        return
    if error > largest_error(parts.spec.dtype):
        raise _refusal(
            parts.decoder, f"does not compute what its own forward pass does (error {error:.2g})"
        )
    log.info("model_checked", seconds=seconds, error=float(f"{error:.1g}"))


def largest_error(dtype: torch.dtype) -> float:
    """The largest error that rounding may explain.

    In bfloat16, tiny models of all decoder classes have 0.005 at most, and wrong ones 0.07 or more
    (`benchmarks/results/decoders.json`).
    """
    return 1e-3 if dtype == torch.float32 else 0.02


def _refusal(model: Model, reason: str) -> ConfigError:
    return ConfigError(
        f"{model.config.architecture} {one_line(reason)}. It is not supported; "
        "--skip-model-check serves it anyway"
    )


@torch.inference_mode()
def compare_first_steps(
    parts: ModelParts, reference: Reference, is_late: Callable[[], bool]
) -> float | None:
    """Return the largest error of both steps; None if it gets late.

    The reference and both steps compute the same tokens in the same order, so that matrix products
    have equal shapes, and round equally.
    """
    ids_bn = first_tokens(parts)
    run = reference(ids_bn.to(parts.spec.device))
    model = FollowedModel(parts.decoder, run)
    num_groups = len(parts.groups.windows)
    cache = parts.allocate_cache(_NUM_PROMPTS * num_groups, 0)
    recorded = _Recorded(LayeredModel(model, parts.attention, cache))
    runner = ModelRunner(model, parts.attention, cache, recorded)
    prompts = ids_bn.tolist()
    for plan, rows in (
        (_prefill(prompts, num_groups), slice(ids_bn.shape[1] - 1, None, ids_bn.shape[1])),
        (_decode(prompts, num_groups), slice(None)),
    ):
        if is_late():
            return None
        runner.run(plan)
        model.compare_logits(recorded.logits_rv, rows)
    return model.error


def first_tokens(parts: ModelParts) -> torch.Tensor:
    """The prompts [b, n]."""
    config = parts.decoder.config
    num_tokens = min(_NUM_TOKENS, parts.spec.block_size, config.max_position_embeddings)
    ids_t = torch.arange(1, 1 + _NUM_PROMPTS * num_tokens).mul(7).remainder(config.vocab_size)
    return ids_t.view(_NUM_PROMPTS, num_tokens)


def _prefill(prompts: Sequence[Sequence[int]], num_groups: int) -> StepPlan:
    """The prompts in one step. Each has a block in each group."""
    return _plan(0, [(block, prompt, 0) for block, prompt in enumerate(prompts)], num_groups)


def _decode(prompts: Sequence[Sequence[int]], num_groups: int) -> StepPlan:
    """Each token of the prompts as the next token of a request of its own, whose earlier tokens are
    in the prompt's blocks."""
    requests = [
        (block, prompt[: end + 1], end)
        for block, prompt in enumerate(prompts)
        for end in range(len(prompt))
    ]
    return _plan(1, requests, num_groups)


def _plan(
    step_id: int, requests: Sequence[tuple[int, Sequence[int], int]], num_groups: int
) -> StepPlan:
    """`requests`: block, tokens, and how many of them are in the block already."""
    starts, grants = [], []
    for index, (block, token_ids, num_cached) in enumerate(requests):
        engine_id = f"{step_id} {index}"
        starts.append(
            RequestStart(
                engine_id=engine_id,
                token_ids=tuple(token_ids),
                num_prompt_tokens=len(token_ids),
                sampling_params=SamplingParams(temperature=0.0),
                seed=0,
                stop_token_ids=(),
            )
        )
        grants.append(
            Grant(
                engine_id=engine_id,
                start=num_cached,
                num_tokens=len(token_ids) - num_cached,
                new_block_ids=tuple((block * num_groups + group,) for group in range(num_groups)),
                samples=True,
            )
        )
    return StepPlan(step_id=step_id, starts=tuple(starts), grants=tuple(grants))


class _Recorded:
    """A StepModel that keeps its last logits."""

    def __init__(self, inner: LayeredModel) -> None:
        self._inner = inner
        self.sampling = inner.sampling
        self.logits_rv = torch.empty(0)

    def logits(self, batch: InputBatch) -> torch.Tensor:
        logits_rv = self._inner.logits(batch)
        self.logits_rv = logits_rv.clone()
        return logits_rv

    def hidden_states(self) -> torch.Tensor:
        return self._inner.hidden_states()
