"""Options of vLLM that the engine refuses, each with what to use instead."""

from __future__ import annotations

_NO_CONNECTION = "an image is a data URL, and the server opens no connection; remove it"
_ONE_MACHINE = "all replicas run on this machine; --data-parallel-size is their number"
_ONE_SERVER = "one process answers HTTP; --data-parallel-size adds engine processes"
_NO_ADAPTERS = "LoRA adapters are not supported; merge the adapter into the model's weights"
_LONG_PREFILLS = "use --long-prefill-token-threshold, which limits a long prompt's tokens in a step"
_NO_TASK = (
    "one server answers chats, completions and embeddings; remove it (--pooling chooses how "
    "embeddings are made)"
)
_ANY_LENGTH = "CUDA graphs serve sequences of any length; remove it (--max-model-len limits these)"
_NGRAM = 'use --speculative-config \'{"method": "ngram", "prompt_lookup_max": 4}\''
_KEPT_EXPERTS = "each expert stays on its rank, and replicas share none; remove it"
_WHOLE_CONTEXT = "a context is not divided; --tensor-parallel-size divides its KV cache by heads"
_FROM_FILES = "the format follows from the model's files; remove it"
_EXACT = "drafts are always verified exactly, by rejection sampling; remove it"
_OWN_DRAFT = "the draft model runs beside each worker with the engine's own settings; remove it"

REFUSED = {
    "tensor_model_parallel_size": "use --tensor-parallel-size",
    "pipeline_model_parallel_size": "use --pipeline-parallel-size",
    "num_scheduler_steps": "use --async-scheduling (on by default), which plans a step while the "
    "device computes the previous one",
    "multi_step_stream_outputs": "every step's token is streamed at once; remove it",
    "disable_async_output_proc": "use --no-async-scheduling",
    "scheduler_delay_factor": "prompts do not wait on purpose; --max-num-batched-tokens and "
    "--long-prefill-token-threshold limit their tokens in a step",
    "use_v2_block_manager": "there is only one block manager; remove it",
    "max_num_partial_prefills": _LONG_PREFILLS,
    "max_long_partial_prefills": _LONG_PREFILLS,
    "num_lookahead_slots": "use --num-speculative-tokens, which reserves the room for drafts",
    "max_seq_len_to_capture": _ANY_LENGTH,
    "max_context_len_to_capture": _ANY_LENGTH,
    "task": _NO_TASK,
    "runner": _NO_TASK,
    "convert": _NO_TASK,
    "attention_config": "use --attention-backend",
    "scheduler_cls": "use --scheduler with the name of a plugin",
    "trust_remote_code": "code from a model's folder is never run; remove it",
    "worker_use_ray": "use --distributed-executor-backend ray",
    "cpu_offload_gb": "weights stay on the device; divide them with --tensor-parallel-size, or use "
    "a quantized model",
    "kv_offloading_size": "use --preemption-mode swap with --swap-space",
    "kv_offloading_backend": "use --preemption-mode swap with --swap-space",
    "data_parallel_size_local": _ONE_MACHINE,
    "data_parallel_backend": _ONE_MACHINE,
    "data_parallel_rank": _ONE_MACHINE,
    "data_parallel_address": _ONE_MACHINE,
    "data_parallel_rpc_port": _ONE_MACHINE,
    "data_parallel_start_rank": _ONE_MACHINE,
    "data_parallel_hybrid_lb": _ONE_MACHINE,
    "data_parallel_external_lb": _ONE_MACHINE,
    "headless": _ONE_MACHINE,
    "enable_eplb": _KEPT_EXPERTS,
    "eplb_config": _KEPT_EXPERTS,
    "num_redundant_experts": _KEPT_EXPERTS,
    "expert_placement_strategy": _KEPT_EXPERTS,
    "all2all_backend": _KEPT_EXPERTS,
    "enable_dbo": _KEPT_EXPERTS,
    "decode_context_parallel_size": _WHOLE_CONTEXT,
    "prefill_context_parallel_size": _WHOLE_CONTEXT,
    "prefix_caching_hash_algo": "blocks are found by SHA-256; remove it",
    "performance_mode": "use a lower --max-num-batched-tokens for latency, a higher one for "
    "throughput",
    "num_cpu_blocks_override": "use --swap-space",
    "rope_scaling": "use --hf-overrides '{\"rope_parameters\": {...}}'",
    "rope_theta": 'use --hf-overrides \'{"rope_parameters": {"rope_theta": ...}}\'',
    "tokenizer_mode": _FROM_FILES,
    "config_format": _FROM_FILES,
    "guided_decoding_backend": "use --grammar-backend",
    "structured_outputs_config": "use --grammar-backend",
    "pooler_config": "use --pooling",
    "override_pooler_config": "use --pooling",
    "enable_reasoning": "use --reasoning-parser",
    "numa_bind": "use --cpu-bind, which names the cores of each worker",
    "api_server_count": _ONE_SERVER,
    "mm_processor_cache_type": "processed images are kept in the server's process; use "
    "--mm-processor-cache-gb",
    "mm_encoder_tp_mode": "the encoder is not divided; remove it",
    "skip_mm_profiling": "the memory for images is computed, not measured; --limit-mm-per-prompt "
    "lowers it",
    "enable_mm_embeds": "clients send images, not embeddings; remove it",
    "media_io_kwargs": "use --mm-processor-kwargs",
    "allowed_media_domains": _NO_CONNECTION,
    "interleave_mm_strings": "images stand where the messages have them; remove it",
    "disable_chunked_mm_input": "a part of an image is never computed without the rest; remove it",
    "enable_lora": _NO_ADAPTERS,
    "max_loras": _NO_ADAPTERS,
    "max_lora_rank": _NO_ADAPTERS,
    "ngram_prompt_lookup_max": _NGRAM,
    "ngram_prompt_lookup_min": _NGRAM,
    "speculative_disable_by_batch_size": "use --draft-length adaptive (the default), which drafts "
    "less when steps are full",
    "speculative_draft_tensor_parallel_size": _OWN_DRAFT,
    "speculative_max_model_len": _OWN_DRAFT,
    "spec_decoding_acceptance_method": _EXACT,
    "typical_acceptance_sampler_posterior_threshold": _EXACT,
    "typical_acceptance_sampler_posterior_alpha": _EXACT,
    "input_tokens": "it describes the prompts of a benchmark; `tokenmill simulate compare` has it",
    "output_tokens": "it describes the answers of a benchmark; `tokenmill simulate compare` has it",
}
"""By name of the option, what to use instead: the end of a sentence."""
_SHORT = {"-q": "use --quantization", "-asc": _ONE_SERVER, "-dcp": _WHOLE_CONTEXT}
"""The same for short flags."""


def refusal(name: str) -> str:
    """Return "; use ..." for a refused option or flag, or "" if it is not one of them."""
    key = name.lstrip("-").partition(".")[0].replace("-", "_")
    sentence = _SHORT.get(name) or REFUSED.get(key) or REFUSED.get(key.removeprefix("no_"))
    return f": {sentence}" if sentence else ""
