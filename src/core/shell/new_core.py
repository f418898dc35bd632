"""Makes the engine's state machine for a configuration, a model and its KV cache."""

from __future__ import annotations

from dataclasses import replace

from ..config import EngineConfig
from ..contract.providers.speculation import SpeculationLimits
from ..engine.engine_core import EngineCore
from ..engine.media import MediaPool
from ..engine.step import StepLimits
from ..engine.step_log.ledger import HookTimes
from ..errors import ConfigError
from ..host.plugin_host import PluginHost
from ..interfaces import MediaInfo, ModelInfo
from ..kv_memory import blocks_held, longest_sequence

SCORING_BYTES = 1 << 28
"""Memory for the float32 logits of the prompt tokens that a step scores."""
SCORING_WIDTH = 128
"""The softmax, the rank and the most likely tokens of a scored token cost the same as its logits
would cost with this number of additional dimensions of the hidden state (measured on CPUs)."""
LEAST_CONTEXT = 256
"""Tokens. If the KV memory is too small for one request of this length, the engine would refuse
almost every chat: the chat template of the default model alone takes 30 tokens."""


def fit_max_model_len(config: EngineConfig, info: ModelInfo) -> int:
    """The maximum sequence length that the configuration, the model and the KV cache allow.

    Raises ConfigError if the configuration asks for more than model or KV cache allow, or if its
    steps are too small for the model's images.
    """
    wanted = config.max_model_len or info.max_model_len
    if wanted > info.max_model_len:
        raise ConfigError(
            f"--max-model-len is {wanted}, but the model was made for {info.max_model_len} tokens"
        )
    step_tokens = config.token_budget(info.device, info.largest_span_tokens)
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
    token_budget = config.token_budget(info.device, info.largest_span_tokens)
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
        step_log_size=config.step_log_size,
        hook_times=HookTimes(plugins.delaying_hooks, plugins.seconds_by_hook),
        media=_media_pool(info.media),
    )


def _media_pool(info: MediaInfo | None) -> MediaPool | None:
    return None if info is None else MediaPool(info.cache_bytes, info.bytes_per_token)


def _max_num_scored_tokens(info: ModelInfo, token_budget: int) -> int:
    """Maximum number of prompt tokens that a step scores.

    Their logits fit into memory, and the step takes no longer than one that computes a whole token
    budget and scores nothing. The tokens of a span are computed and scored together.
    """
    in_memory = SCORING_BYTES // (4 * info.vocab_size)
    to_score = info.vocab_size * (info.hidden_size + SCORING_WIDTH)
    to_compute = max(0, info.num_parameters - info.vocab_size * info.hidden_size)
    in_time = token_budget * to_compute // (to_compute + to_score)
    most = min(in_memory, in_time if to_compute else token_budget)
    return max(1, most, info.largest_span_tokens)


def _limit_drafts(plugins: PluginHost, info: ModelInfo) -> SpeculationLimits | None:
    """The limits on drafts. With worker processes, only a worker knows whether drafts need
    lookahead, and reports it in `info`."""
    limits = plugins.speculation_limits
    if limits is None or not info.drafts_need_lookahead:
        return limits
    return replace(limits, needs_lookahead=True)
