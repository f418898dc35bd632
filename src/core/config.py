"""Every knob of the engine, in one place; names are vLLM's wherever the thing is the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from .errors import ConfigError
from .speculation_settings import SpeculationSettings, read_speculation
from .suggest import did_you_mean

BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")


def _knob(default: Any, help: str, **extra: Any) -> Any:
    return field(default=default, metadata={"help": help, **extra})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How an engine is built. None: decided at start, from model, machine or plugins.toml.

    Raises ConfigError when a value cannot work.
    """

    model: str | None = _knob(
        None,
        "Hugging Face directory (safetensors) or .gguf file; default: the embedded "
        "SmolLM2-135M-Instruct",
    )
    tokenizer: str | None = _knob(
        None, "directory or .gguf file to take the tokenizer from, if not the model's own"
    )
    served_model_name: str | None = _knob(
        None, "name under which the API serves the model; default: the model's own"
    )
    dtype: str = _knob(
        "auto",
        "precision of the weights and of what is computed: auto (quantized weights stay so on CPUs with AVX2), "
        "float32, bfloat16 or float16",
    )
    device: str = _knob("auto", "auto, cpu or cuda")
    seed: int = _knob(0, "seed of the noise of requests that bring none")
    max_model_len: int | None = _knob(
        None, "longest sequence, prompt and output; default: what the model and the KV cache allow"
    )
    generation_config: str = _knob(
        "auto",
        "auto: take sampling defaults from the model's generation_config; vllm: neutral ones",
    )
    max_logprobs: int = _knob(20, "most logprobs that a request may ask for")

    block_size: int = _knob(16, "tokens per KV block: 8, 16, 32, ...")
    gpu_memory_utilization: float = _knob(
        0.92, "part of the GPU's memory that weights, activations and KV cache may take"
    )
    kv_cache_memory: int | None = _knob(
        None,
        "bytes for the KV cache (K, M, G suffixes allowed); default on CPU: the smaller of 1 GiB "
        "and a quarter of what is free",
    )
    kv_cache_dtype: str = _knob(
        "auto",
        "what the KV cache holds: auto (numbers of the precision that is computed in), or 8-bit "
        "floating point at a scale of 1, for twice the tokens or more: fp8_e4m3 (also fp8) or "
        "fp8_e5m2; for the attention backends cuda-paged and torch",
    )
    num_gpu_blocks_override: int | None = _knob(
        None, "number of KV blocks, whatever memory there is"
    )
    swap_space: float | None = _knob(
        None,
        "GiB of host memory for the KV blocks of swapped requests; default: 4, or a quarter of "
        "what is free if that is less",
    )
    enable_prefix_caching: bool = _knob(True, "reuse the KV blocks of prompts that begin alike")

    max_num_seqs: int = _knob(256, "most requests in one step")
    max_num_batched_tokens: int | None = _knob(
        None,
        "most tokens in one step; default: 256 on CPU (or max_num_seqs if that is more), "
        "8192 on GPU",
    )
    long_prefill_token_threshold: int = _knob(
        0, "most prompt tokens of one request in a step that others share; 0: no limit"
    )
    async_scheduling: bool = _knob(
        True, "plan a decode step while the device still computes the one before"
    )
    enable_chunked_prefill: bool | None = _knob(
        None, "True selects the chunked scheduler, False prefill-first"
    )
    max_num_queued_reqs: int = _knob(1024, "most waiting requests; more are refused with 503")
    watermark: float = _knob(0.01, "part of the KV blocks that a new request must leave free")

    plugins_file: str | None = _knob(
        None, "the plugins.toml to use; default: ./plugins.toml, then the packaged one"
    )
    scheduler: str | None = _knob(None, "who runs next: prefill-first, chunked, or a plugin's name")
    scheduling_policy: str | None = _knob(
        None, "order of the waiting requests: fcfs, priority, or a plugin's name"
    )
    preemption_mode: str | None = _knob(
        None, "what happens when KV blocks run out: recompute, swap, or a plugin's name"
    )
    attention_backend: str | None = _knob(
        None,
        "how attention is computed: auto, cpu, torch, flash-attn, xformers, cuda-paged, triton, or "
        "a plugin's name; two names joined by a comma: one for prompts, one for decodes",
    )

    speculative_method: str | None = _knob(
        None,
        "who guesses the next tokens, which the model then verifies in one step: none, ngram, "
        "draft-model, or a plugin's name",
    )
    speculative_model: str | None = _knob(
        None,
        "draft head, or smaller model with the same vocabulary, that guesses: directory or .gguf "
        "file; implies the method draft-model",
    )
    num_speculative_tokens: int | None = _knob(
        None, "most tokens to guess for a request in a step, 1 to 16; default: 5"
    )
    speculative_adaptive: bool = _knob(
        True,
        "guess fewer tokens, down to none, where that does not make answers faster; off: always "
        "num_speculative_tokens",
    )
    speculative_config: str | Mapping[str, object] | None = _knob(
        None,
        "method, model and num_speculative_tokens as JSON, with options of the method: "
        """'{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'""",
    )

    hook_watchdog_seconds: float = _knob(
        5.0,
        "seconds after which a plugin's hook that still runs is logged, with its stack; 0: never",
    )
    request_timeout: float | None = _knob(
        None, "seconds after which a request is ended, with what it has; default: never"
    )
    disable_log_stats: bool = _knob(False, "no stats line every 10 seconds")
    metrics_prefix: str = _knob(
        "tokenmill:", "prefix of Prometheus metric names; 'vllm:' suits existing dashboards"
    )

    def __post_init__(self) -> None:
        for name, low, high in (
            ("max_model_len", 2, 2**31),
            ("max_num_seqs", 1, 65536),
            ("max_num_batched_tokens", 1, 2**31),
            ("num_gpu_blocks_override", 1, 2**31),
            ("kv_cache_memory", 1, 2**63),
            ("long_prefill_token_threshold", 0, 2**31),
            ("max_num_queued_reqs", 1, 2**31),
            ("max_logprobs", 0, 1000),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, (int, float)):
                raise ConfigError(f"{flag(name)} must be a number, got {value!r}")
            if not low <= value <= high:
                raise ConfigError(f"{flag(name)} must be between {low} and {high}, got {value}")
        if self.block_size not in BLOCK_SIZES:
            raise ConfigError(
                f"--block-size must be one of {', '.join(map(str, BLOCK_SIZES))}, "
                f"got {self.block_size}"
            )
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"--dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}"
                f"{did_you_mean(self.dtype, DTYPES)}"
            )
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise ConfigError(
                f"--kv-cache-dtype must be one of {', '.join(KV_CACHE_DTYPES)}, "
                f"got {self.kv_cache_dtype!r}{did_you_mean(self.kv_cache_dtype, KV_CACHE_DTYPES)}"
            )
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"--gpu-memory-utilization must be in (0, 1], got {self.gpu_memory_utilization}"
            )
        if self.swap_space is not None and self.swap_space < 0:
            raise ConfigError(f"--swap-space must not be negative, got {self.swap_space}")
        if not 0 <= self.watermark < 1:
            raise ConfigError(f"--watermark must be in [0, 1), got {self.watermark}")
        if self.request_timeout is not None and self.request_timeout <= 0:
            raise ConfigError(f"--request-timeout must be positive, got {self.request_timeout}")
        if not 0 <= self.hook_watchdog_seconds < math.inf:
            raise ConfigError(
                "--hook-watchdog-seconds must be 0 or more seconds, "
                f"got {self.hook_watchdog_seconds}"
            )
        if self.generation_config not in ("auto", "vllm"):
            raise ConfigError(
                f"--generation-config must be auto or vllm, got {self.generation_config!r}"
            )
        self.speculation()

    def speculation(self) -> SpeculationSettings:
        """What the flags say about speculation, --speculative-config read. Raises ConfigError."""
        return read_speculation(
            method=self.speculative_method,
            model=self.speculative_model,
            num_speculative_tokens=self.num_speculative_tokens,
            is_adaptive=self.speculative_adaptive,
            config=self.speculative_config,
        )

    def token_budget(self, device: str) -> int:
        """`max_num_batched_tokens`, or its default for "cpu" or "cuda".

        On a CPU 256 tokens already fill the cores: more in a step compute hardly faster, they only
        make running answers wait longer (benchmarks/token_budget.py). Every running request must be
        able to get its token in one step, hence max_num_seqs. A GPU needs more tokens to be busy.
        """
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return 8192 if device.startswith("cuda") else max(256, self.max_num_seqs)

    @classmethod
    def from_options(cls, **options: Any) -> Self:
        """A configuration from loose keywords; an unknown one is an error that names near ones."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                raise ConfigError(f"unknown option {name!r}{did_you_mean(name, known)}")
        return cls(**options)


def flag(name: str) -> str:
    """The command-line spelling of an option."""
    return "--" + name.replace("_", "-")
