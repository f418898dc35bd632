"""A worst-case step that measures the activations' memory. The KV cache gets the rest of a GPU."""

from __future__ import annotations

import torch

from ...core.config import EngineConfig
from ...core.plan import Grant, RequestStart, StepPlan
from ...core.requests.sampling_params import SamplingParams
from ..state.kv_cache import GPUMemory, KVCache
from .parts.model_parts import ModelParts
from .runner import ModelRunner
from .stage_runner import StageRunner


def measure_gpu_memory(
    parts: ModelParts, config: EngineConfig, num_drafts: int = 0, span_tokens: int = 0
) -> GPUMemory:
    """Measure the use of the GPU's memory in the largest step that the configuration allows, with
    `num_drafts` draft tokens per request. `span_tokens`: see MediaInfo.largest_span_tokens."""
    device = parts.spec.device
    weights = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run_largest_step(parts, config, num_drafts, span_tokens)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return GPUMemory(
        total=total,
        used_elsewhere=total - free - torch.cuda.memory_reserved(device),
        weights=weights,
        activations=peak - weights,
    )


def run_largest_step(
    parts: ModelParts, config: EngineConfig, num_drafts: int = 0, span_tokens: int = 0
) -> None:
    """Prefill `max_num_batched_tokens` tokens and sample `max_num_seqs` requests, or the
    number that the model can take, with filters and penalties. All layers share one layer's
    scratch memory. Stages of a model compute the step together.

    Each draft token has its own row of logits, so it counts as one more request.
    """
    decoder, attention, groups, spec = parts.decoder, parts.attention, parts.groups, parts.spec
    num_rows = config.max_num_seqs * (1 + num_drafts)
    max_len = decoder.config.max_position_embeddings
    budget = config.token_budget(spec.device.type, span_tokens)
    plan, num_blocks = _largest_plan(config, num_rows, max_len, budget, len(groups.windows))
    shape = attention.kv_cache_shape(num_blocks)
    scratch = torch.zeros(shape, dtype=spec.cache_dtype, device=spec.device)
    cache = KVCache(
        tensors=[scratch] * groups.layers_per_block,
        host_tensors=[],
        groups=groups,
        num_blocks=num_blocks,
        block_size=config.block_size,
    )
    kind = ModelRunner if decoder.config.has_head else StageRunner
    kind(decoder, attention, cache).run(plan)


def _largest_plan(
    config: EngineConfig, num_rows: int, max_len: int, budget: int, num_groups: int
) -> tuple[StepPlan, int]:
    """The plan, and the number of blocks it needs: prompts of maximum length, then of one token.
    All groups of layers have the same blocks."""
    num_requests = min(num_rows, budget)
    params = SamplingParams(top_p=0.9, repetition_penalty=1.1, logprobs=config.max_logprobs)
    starts, grants, num_blocks = [], [], 0
    for index in range(num_requests):
        num_tokens = min(max_len, budget - (num_requests - index - 1))
        budget -= num_tokens
        blocks = tuple(range(num_blocks, num_blocks + -(-num_tokens // config.block_size)))
        num_blocks += len(blocks)
        starts.append(
            RequestStart(
                engine_id=str(index),
                token_ids=(0,) * num_tokens,
                num_prompt_tokens=num_tokens,
                sampling_params=params,
                seed=index,
                stop_token_ids=(),
            )
        )
        grants.append(
            Grant(
                engine_id=str(index),
                start=0,
                num_tokens=num_tokens,
                new_block_ids=(blocks,) * num_groups,
                samples=True,
            )
        )
    return StepPlan(step_id=0, starts=tuple(starts), grants=tuple(grants)), num_blocks
