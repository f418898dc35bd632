"""All settings of the engine. A setting that vLLM also has uses vLLM's name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from .errors import ConfigError
from .pooling import Pooling
from .speculation_settings import SpeculationSettings, read_speculation
from .suggest import did_you_mean

BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_CACHE_DTYPES = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")


def _knob(default: Any, help: str, **extra: Any) -> Any:
    return field(default=default, metadata={"help": help, **extra})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine. None: the model, the machine or plugins.toml decides at start.

    Raises ConfigError when a value cannot work.
    """

    model: str | None = _knob(
        None,
        "Hugging Face directory (safetensors), .gguf file, or a model in the Hugging Face cache: "
        "ORG/NAME, ORG/NAME:Q4_K_M or ORG/NAME/FILE.gguf, optionally with @REVISION; default: "
        "SmolLM2-135M-Instruct, which `tokenmill model fetch` installs",
    )
    allow_download: bool = _knob(
        False,
        "download --model and --speculative-model from the Hugging Face Hub or $HF_ENDPOINT if "
        "the Hugging Face cache does not have them whole; without it nothing is downloaded",
    )
    revision: str | None = _knob(
        None,
        "branch, tag or commit of --model on the Hugging Face Hub, as @REVISION in its name; "
        "default: main, as the cache has it",
    )
    tokenizer: str | None = _knob(
        None,
        "directory, .gguf file or name in the Hugging Face cache to read the tokenizer from; "
        "default: the model's own",
    )
    served_model_name: str | None = _knob(
        None, "name of the model in the API; default: the model's own name"
    )
    dtype: str = _knob(
        "auto",
        "precision of weights and computation: auto, float32, bfloat16 or float16 (only on GPUs); "
        "auto keeps quantized weights quantized on CPUs with AVX2 or ARM's dot products",
    )
    quantization: str | None = _knob(
        None,
        "expected quantization of the model's files: awq, gptq, fp8, compressed-tensors, mxfp4 or "
        "gguf; the start fails if the files have another one; default: the quantization of the "
        "files",
    )
    quantize_on_load: str | None = _knob(
        None,
        "quantize the matrices of a floating-point model while it is loaded, to 8 or 4 bits: "
        "q8_0, q4_0 or q4_k; on CPUs",
    )
    model_cache_size: int | None = _knob(
        None,
        "maximum size in bytes of all models that --quantize-on-load keeps in the cache folder, "
        "so that the next start need not quantize; suffixes K, M and G are allowed; 0: keep none; "
        "default: 20 GiB, or a quarter of the free disk if that is less",
    )
    device: str = _knob("auto", "device to compute on: auto, cpu or cuda")
    seed: int = _knob(0, "sampling seed for requests that have none")
    max_model_len: int | None = _knob(
        None, "maximum length of prompt and output; default: what the model and the KV cache allow"
    )
    generation_config: str = _knob(
        "auto",
        "source of the sampling defaults; auto: the model's generation_config; vllm: neutral "
        "values",
    )
    pooling: str = _knob(
        "last",
        "hidden states that /v1/embeddings averages; last: that of the last token; mean: those of "
        "all tokens",
    )
    max_logprobs: int = _knob(20, "maximum number of logprobs per token that a request may ask for")

    block_size: int = _knob(16, "tokens per KV block: 8, 16, 32, 64, 128 or 256")
    gpu_memory_utilization: float = _knob(
        0.92, "fraction of the GPU's memory that weights, activations and KV cache may use"
    )
    kv_cache_memory: int | None = _knob(
        None,
        "size of the KV cache in bytes, for each rank of each replica; suffixes K, M and G are "
        "allowed; default on CPU: 1 GiB, or a quarter of the free memory, divided among them, if "
        "that is less; default on GPU: what --gpu-memory-utilization leaves",
    )
    kv_cache_dtype: str = _knob(
        "auto",
        "type of the numbers in the KV cache: auto (the precision of the computation), fp8_e4m3 "
        "(same as fp8) or fp8_e5m2; with 8-bit types the cache holds twice the tokens of bfloat16; "
        "their scale is 1, and they need the attention backend cuda-paged or torch",
    )
    num_gpu_blocks_override: int | None = _knob(
        None, "number of KV blocks; default: computed from the size of the KV cache"
    )
    swap_space: float | None = _knob(
        None,
        "GiB of host memory for the KV blocks of swapped requests, for each rank of each replica; "
        "default: 4, or a quarter of the free memory, divided among them, if that is less",
    )
    enable_prefix_caching: bool = _knob(True, "reuse KV blocks for prompts with a common beginning")

    data_parallel_size: int = _knob(
        1,
        "number of engine processes (replicas) behind one port; each has its own copy of the model "
        "and its own CPU cores or GPU; only for `tokenmill serve`",
    )

    max_num_seqs: int = _knob(256, "maximum number of requests in one step")
    max_num_batched_tokens: int | None = _knob(
        None,
        "maximum number of tokens in one step; default: 256 on CPU (or max_num_seqs if that is "
        "more), 8192 on GPU",
    )
    long_prefill_token_threshold: int = _knob(
        0,
        "maximum number of prompt tokens of one request in a step, if the step has other requests; "
        "0: no limit",
    )
    async_scheduling: bool = _knob(
        True, "plan a decode step while the device still computes the previous one"
    )
    enable_chunked_prefill: bool | None = _knob(
        None, "on: use the scheduler chunked; off: use prefill-first"
    )
    max_num_queued_reqs: int = _knob(
        1024, "maximum number of waiting requests; the server refuses more with status 503"
    )
    watermark: float = _knob(0.01, "fraction of the KV blocks that a new request must leave free")

    plugins_file: str | None = _knob(
        None, "plugins.toml to use; default: ./plugins.toml, then the packaged one"
    )
    scheduler: str | None = _knob(
        None,
        "policy that decides how many tokens each request computes in a step: chunked, "
        "prefill-first, or a plugin's name",
    )
    scheduling_policy: str | None = _knob(
        None, "order of the waiting requests: fcfs, priority, or a plugin's name"
    )
    preemption_mode: str | None = _knob(
        None,
        "what happens when no KV block is free: recompute, swap, lowest-priority, or a plugin's "
        "name",
    )
    distributed_executor_backend: str | None = _knob(
        None,
        "where steps are computed: auto (inprocess, or multiprocess if several workers are "
        "needed), inprocess or uni (the engine's process), multiprocess or mp (worker processes), "
        "ray (workers of a Ray cluster), or a plugin's name",
    )
    tensor_parallel_size: int = _knob(
        1,
        "number of worker processes that divide each layer; each has some heads and some "
        "feed-forward columns, and its own CPU cores or GPU",
    )
    cpu_bind: str = _knob(
        "auto",
        "CPUs of each worker process, in the order of the ranks, separated by |, such as "
        "0-15|16-31; auto: equal shares of the cores; Linux only",
    )
    enable_expert_parallel: bool = _knob(
        False,
        "with --tensor-parallel-size, divide a model by whole experts, instead of by columns of "
        "every expert",
    )
    pipeline_parallel_size: int = _knob(
        1,
        "number of stages; each has some of the layers and --tensor-parallel-size worker "
        "processes; the stages compute different requests at the same time",
    )
    attention_backend: str | None = _knob(
        None,
        "code that computes attention: auto, cpu, torch, flash-attn, xformers, cuda-paged, triton, "
        "or a plugin's name; two names with a comma: the first computes prompts, the second "
        "decodes",
    )
    linear_backend: str | None = _knob(
        None, "code that computes matrix products: auto, cpu, torch, or a plugin's name"
    )

    model_impl: str | None = _knob(
        None,
        "code that runs the model: auto, native, transformers (most decoders that transformers "
        "knows), or a plugin's name",
    )
    skip_model_check: bool = _knob(
        False,
        "do not compare the first steps of a model that transformers runs with its own forward "
        "pass at start; the log says so",
    )

    grammar_backend: str | None = _knob(
        None,
        "code that makes answers follow a grammar, such as a JSON schema: auto, llguidance, or a "
        "plugin's name",
    )

    speculative_method: str | None = _knob(
        None,
        "method that drafts the next tokens, which the model then verifies in one step: none, "
        "ngram, draft-model, or a plugin's name",
    )
    speculative_model: str | None = _knob(
        None,
        "directory or .gguf file of a draft head, or of a smaller model with the same vocabulary; "
        "implies the method draft-model",
    )
    num_speculative_tokens: int | None = _knob(
        None, "maximum number of draft tokens of a request in a step, 1 to 16; default: 5"
    )
    draft_length: str | None = _knob(
        None,
        "policy that chooses the number of draft tokens of each request: adaptive (as many as make "
        "answers faster, or none), fixed (always num_speculative_tokens), or a plugin's name",
    )
    speculative_adaptive: bool | None = _knob(
        None, "on: use the draft length adaptive; off: use fixed"
    )
    speculative_config: str | Mapping[str, object] | None = _knob(
        None,
        "method, model, num_speculative_tokens and options of the method as JSON: "
        """'{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'""",
    )

    tool_call_parser: str | None = _knob(
        None,
        "parser that finds tool calls in the answers of chats: auto (by the chat template), "
        "hermes, qwen3-xml, glm, llama3-json, mistral, gemma, pythonic, gpt-oss, none, or a "
        "plugin's name",
    )
    reasoning_parser: str | None = _knob(
        None,
        "parser that separates reasoning from content in the answers of chats: auto (by the chat "
        "template), think, mistral-think, gemma-think, gpt-oss, none, or a plugin's name",
    )

    router: str | None = _knob(
        None,
        "policy that chooses the replica of each request, with --data-parallel-size: prefix-aware, "
        "least-loaded, round-robin, session, or a plugin's name",
    )

    hook_watchdog_seconds: float = _knob(
        5.0,
        "seconds after which a plugin's hook that still runs is logged, with its stack; 0: never",
    )
    request_timeout: float | None = _knob(
        None,
        "maximum duration of a request in seconds; then it ends with the tokens that it has; "
        "default: no limit",
    )
    disable_log_stats: bool = _knob(False, "do not log a line of statistics every 10 seconds")
    metrics_prefix: str = _knob(
        "tokenmill:", "prefix of Prometheus metric names; 'vllm:' fits existing dashboards"
    )
    otlp_traces_endpoint: str | None = _knob(
        None,
        "URL to send OpenTelemetry traces to, by OTLP over HTTP, such as "
        "http://localhost:4318/v1/traces; needs the extra otel; default: no traces",
    )

    def __post_init__(self) -> None:
        for name, low, high in (
            ("max_model_len", 2, 2**31),
            ("max_num_seqs", 1, 65536),
            ("max_num_batched_tokens", 1, 2**31),
            ("num_gpu_blocks_override", 1, 2**31),
            ("kv_cache_memory", 1, 2**63),
            ("model_cache_size", 0, 2**63),
            ("data_parallel_size", 1, 1024),
            ("long_prefill_token_threshold", 0, 2**31),
            ("max_num_queued_reqs", 1, 2**31),
            ("tensor_parallel_size", 1, 1024),
            ("pipeline_parallel_size", 1, 1024),
            ("max_logprobs", 0, 1000),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, (int, float)):
                raise ConfigError(f"{flag(name)} must be a number, got {value!r}")
            if not low <= value <= high:
                raise ConfigError(f"{flag(name)} must be between {low} and {high}, got {value}")
        if self.model == "":
            raise ConfigError("--model is empty: leave it out for the default model")
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
        if self.quantize_on_load is not None and self.dtype != "auto":
            raise ConfigError(
                "--quantize-on-load and --dtype contradict each other: remove --dtype"
            )
        if self.cpu_bind != "auto" and self.data_parallel_size > 1:
            raise ConfigError(
                "--cpu-bind names the CPUs of one replica, but --data-parallel-size is "
                f"{self.data_parallel_size}: remove one of them"
            )
        if self.router is not None and self.data_parallel_size == 1:
            raise ConfigError(
                f"--router {self.router} has no effect on one replica: add --data-parallel-size, "
                "or remove --router"
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
        if self.pooling not in tuple(Pooling):
            raise ConfigError(f"--pooling must be last or mean, got {self.pooling!r}")
        self.speculation()

    def speculation(self) -> SpeculationSettings:
        """The settings of speculation, with --speculative-config parsed. Raises ConfigError."""
        return read_speculation(
            method=self.speculative_method,
            model=self.speculative_model,
            num_speculative_tokens=self.num_speculative_tokens,
            config=self.speculative_config,
        )

    @property
    def num_ranks(self) -> int:
        """Number of processes that compute the model together."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def token_budget(self, device: str) -> int:
        """Tokens per step: `max_num_batched_tokens`, or its default for "cpu" or "cuda".

        On a CPU 256 tokens already keep the cores busy. A larger step is hardly faster per token,
        and running answers wait longer for it (benchmarks/token_budget.py). The default is at least
        max_num_seqs, so that every running request can get its token in one step. A GPU needs more
        tokens to be busy.
        """
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return 8192 if device.startswith("cuda") else max(256, self.max_num_seqs)

    @classmethod
    def from_options(cls, **options: Any) -> Self:
        """Make a configuration from keywords. Raises ConfigError for an unknown one."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                raise ConfigError(f"unknown option {name!r}{did_you_mean(name, known)}")
        return cls(**options)


def flag(name: str) -> str:
    """The command-line spelling of an option."""
    return "--" + name.replace("_", "-")
