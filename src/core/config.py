"""All settings of the engine. A setting that vLLM also has uses vLLM's name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, Self, TypeVar

import msgspec

from .errors import ConfigError
from .kinds import KINDS
from .requests.pooling import Pooling
from .requests.sampling_params import MODEL, sampled_in
from .settings.checking import check_value
from .settings.compilation import (
    capture_sizes,
    check_capture_sizes,
    check_compilation,
    check_level,
)
from .settings.declaration import arguments, flag, setting
from .settings.hf_overrides import read_hf_overrides
from .settings.multimodal import MAX_IMAGES, ImageLimit, image_limit, read_processor_kwargs
from .settings.refused import refusal
from .settings.sampling_defaults import read_sampling_defaults
from .settings.speculation import SpeculationSettings, read_speculation
from .wording.suggest import did_you_mean

T = TypeVar("T")
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
DTYPES = ("auto", "float32", "bfloat16", "float16")
LOAD_FORMATS = ("auto", "dummy")
KV_CACHE_DTYPES = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")

_GRAPHS = "CUDA graphs are for GPUs"


def _with_kinds(cls: type[T]) -> type[T]:
    """Add the settings that choose providers: each kind declares its own."""
    for name, kind in KINDS.items():
        if kind.flag is not None:
            cls.__annotations__[name] = "str | None"
            setattr(cls, name, kind.flag)
    return cls


@dataclass(frozen=True, slots=True, kw_only=True)
@_with_kinds
class EngineConfig:
    """Settings of one engine. None: the model, the machine or plugins.toml decides at start.

    The names of slots are settings, too: `scheduler`, `router` and so on; see kinds.py. Raises
    ConfigError when a value cannot work.
    """

    model: str | None = setting(
        None,
        "Hugging Face directory (safetensors), .gguf file, or a model in the Hugging Face cache: "
        "ORG/NAME, ORG/NAME:Q4_K_M or ORG/NAME/FILE.gguf, optionally with @REVISION; default: "
        "SmolLM2-135M-Instruct, which `tokenmill model fetch` installs",
        group="model",
        metavar="MODEL",
    )
    allow_download: bool = setting(
        False,
        "download --model and --speculative-model from the Hugging Face Hub or $HF_ENDPOINT if "
        "the Hugging Face cache does not have them whole; without it nothing is downloaded",
    )
    revision: str | None = setting(
        None,
        "branch, tag or commit of --model on the Hugging Face Hub, as @REVISION in its name; "
        "default: main, in the version that the cache has",
    )
    tokenizer: str | None = setting(
        None,
        "directory, .gguf file or name in the Hugging Face cache to read the tokenizer from; "
        "default: the model's own",
        metavar="MODEL",
    )
    chat_template: str | None = setting(
        None,
        "file with a chat template in Jinja, or the template itself; default: the model's own",
        metavar="PATH",
    )
    served_model_name: str | None = setting(
        None, "name of the model in the API; default: the model's own name"
    )
    hf_overrides: str | Mapping[str, object] | None = setting(
        None,
        "fields that replace those of the model's config.json, as JSON; objects are merged; "
        "not for GGUF files; example: "
        """'{"rope_parameters": {"rope_type": "yarn", "factor": 4}}'""",
        metavar="JSON",
    )
    load_format: str = setting(
        "auto",
        "source of the weights; auto: the model's files; dummy: random numbers, by --seed, for "
        "measurements with only a config.json and a tokenizer",
        one_of=LOAD_FORMATS,
    )
    dtype: str = setting(
        "auto",
        "precision of weights and computation: auto, float32, bfloat16 or float16 (on CPUs: "
        "weights in float16, computation in float32); auto keeps quantized weights quantized, and "
        "float16 weights in float16, on CPUs with AVX2 or ARM's dot products",
        one_of=DTYPES,
    )
    quantization: str | None = setting(
        None,
        "expected quantization of the model's files: awq, gptq, fp8, compressed-tensors, mxfp4 or "
        "gguf; the start fails if the files have another one; default: the quantization of the "
        "files",
    )
    quantize_on_load: str | None = setting(
        None,
        "quantize the matrices of a floating-point model while it is loaded, to 8 or 4 bits: "
        "q8_0, q4_0 or q4_k; on CPUs",
        metavar="{q8_0,q4_0,q4_k}",
    )
    model_cache_size: int | None = setting(
        None,
        "maximum size in bytes of all models that --quantize-on-load keeps in the cache folder, "
        "so that the next start need not quantize; suffixes K, M and G are allowed; 0: keep none; "
        "default: 20 GiB, or a quarter of the free disk if that is less",
        between=(0, 2**63),
        metavar="SIZE",
    )
    device: str = setting("auto", "device to compute on: auto, cpu or cuda")
    max_model_len: int | None = setting(
        None,
        "maximum length of prompt and output; default: what the model and the KV cache allow",
        between=(2, 2**31),
    )

    seed: int = setting(
        0,
        "sampling seed for requests that have none",
        group="answers",
    )
    generation_config: str = setting(
        "auto",
        "source of the sampling defaults; auto: the model's generation_config; vllm: neutral "
        "values",
        one_of=("auto", "vllm"),
    )
    override_generation_config: str | Mapping[str, object] | None = setting(
        None,
        "sampling defaults that win over the model's, as JSON: max_new_tokens (for chats, too), "
        f"{', '.join(sampled_in(MODEL))}; example: "
        """'{"max_new_tokens": 512}'""",
        metavar="JSON",
    )
    pooling: str = setting(
        "last",
        "hidden states that /v1/embeddings averages; last: that of the last token; mean: those of "
        "all tokens",
        one_of=tuple(Pooling),
    )
    max_logprobs: int = setting(
        20, "maximum number of logprobs per token that a request may ask for", between=(0, 1000)
    )

    block_size: int = setting(
        16,
        "tokens per KV block: 8, 16, 32, 64, 128 or 256",
        one_of=BLOCK_SIZES,
        group="cache",
    )
    gpu_memory_utilization: float = setting(
        0.92,
        "fraction of the GPU's memory that weights, activations and KV cache may use",
        "--device-memory-utilization",
        unused_on_cpu="it is for GPUs; --kv-cache-memory sets the size of the KV cache on CPUs",
    )
    kv_cache_memory: int | None = setting(
        None,
        "size of the KV cache in bytes, for each rank of each replica; suffixes K, M and G are "
        "allowed; default on CPU: 1 GiB, or a quarter of the free memory, divided among them, if "
        "that is less; default on GPU: what --gpu-memory-utilization leaves",
        "--kv-cache-memory-bytes",
        between=(1, 2**63),
        metavar="SIZE",
    )
    kv_cache_dtype: str = setting(
        "auto",
        "type of the numbers in the KV cache: auto (the precision of the computation), fp8_e4m3 "
        "(same as fp8) or fp8_e5m2; with 8-bit types the cache holds twice the tokens of bfloat16; "
        "their scale is 1, and they need the attention backend cuda-paged or torch",
        one_of=KV_CACHE_DTYPES,
    )
    num_gpu_blocks_override: int | None = setting(
        None,
        "number of KV blocks; default: computed from the size of the KV cache",
        between=(1, 2**31),
    )
    swap_space: float | None = setting(
        None,
        "GiB of host memory for the KV blocks of swapped requests, for each rank of each replica; "
        "default: 4, or a quarter of the free memory, divided among them, if that is less",
    )
    enable_prefix_caching: bool = setting(
        True, "reuse KV blocks for prompts with a common beginning"
    )

    max_num_seqs: int = setting(
        256,
        "maximum number of requests in one step",
        between=(1, 65536),
        group="scheduling",
    )
    max_num_batched_tokens: int | None = setting(
        None,
        "maximum number of tokens in one step; default: 256 on CPU (or max_num_seqs if that is "
        "more), 8192 on GPU; more if one step must compute a whole image that is larger",
        between=(1, 2**31),
    )
    long_prefill_token_threshold: int = setting(
        0,
        "maximum number of prompt tokens of one request in a step, if the step has other requests; "
        "0: no limit",
        between=(0, 2**31),
    )
    async_scheduling: bool = setting(
        True, "plan a decode step while the device still computes the previous one"
    )
    enable_chunked_prefill: bool | None = setting(
        None, "on: use the scheduler chunked; off: use prefill-first"
    )
    max_num_queued_reqs: int = setting(
        1024,
        "maximum number of waiting requests; the server refuses more with status 503",
        between=(1, 2**31),
    )
    watermark: float = setting(0.01, "fraction of the KV blocks that a new request must leave free")
    request_timeout: float | None = setting(
        None,
        "maximum duration of a request in seconds; then it ends with the tokens that it has; "
        "default: no limit",
        metavar="SECONDS",
    )

    data_parallel_size: int = setting(
        1,
        "number of engine processes (replicas), among which requests are divided; each has its own "
        "copy of the model and its own CPU cores or GPU; only for `tokenmill serve` and LLM",
        "-dp",
        between=(1, 1024),
        group="parallel",
    )
    tensor_parallel_size: int = setting(
        1,
        "number of worker processes that divide each layer; each has some heads and some "
        "feed-forward columns, and its own CPU cores or GPU",
        "-tp",
        between=(1, 1024),
    )
    pipeline_parallel_size: int = setting(
        1,
        "number of stages; each has some of the layers and --tensor-parallel-size worker "
        "processes; the stages compute different requests at the same time",
        "-pp",
        between=(1, 1024),
    )
    enable_expert_parallel: bool = setting(
        False,
        "with --tensor-parallel-size, divide a model by whole experts, instead of by columns of "
        "every expert",
        "-ep",
    )
    cpu_bind: str = setting(
        "auto",
        "CPUs of each worker process, in the order of the ranks, separated by |, such as "
        "0-15|16-31; auto: equal shares of the cores; Linux only",
        metavar="CPUS",
    )

    skip_model_check: bool = setting(
        False,
        "do not compare the first steps of a model that transformers runs with its own forward "
        "pass at start; the log says so",
        group="backends",
    )

    enforce_eager: bool = setting(
        False,
        "do not capture CUDA graphs of the steps in which all requests decode",
        unused_on_cpu=_GRAPHS,
    )
    compilation_config: str | int | Mapping[str, object] | None = setting(
        None,
        "level, mode, cudagraph_mode, cudagraph_capture_sizes and max_cudagraph_capture_size as "
        "JSON, or the level alone. Models are not compiled, so level and mode have no effect; "
        "cudagraph_mode NONE: capture no CUDA graphs, other modes: capture those of decodes",
        "-cc",
        metavar="JSON",
        unused_on_cpu=_GRAPHS,
    )
    optimization_level: int | None = setting(
        None,
        "0: do not capture CUDA graphs; 1 to 3: no effect",
        "-O",
        unused_on_cpu=_GRAPHS,
    )
    cudagraph_capture_sizes: Sequence[int] | None = setting(
        None,
        "numbers of decodes in a step for which CUDA graphs are captured; default: 1, 2, 4, the "
        "multiples of 8 below 256, then those of 16, and the largest size",
        unused_on_cpu=_GRAPHS,
    )
    max_cudagraph_capture_size: int | None = setting(
        None,
        "maximum number of decodes in a step for which a CUDA graph is captured; default: 512, or "
        "--max-num-seqs if it is less",
        between=(1, 2**31),
        unused_on_cpu=_GRAPHS,
    )
    limit_mm_per_prompt: str | Mapping[str, object] | None = setting(
        None,
        "maximum number of images in a prompt as JSON, such as '{\"image\": 2}' or "
        """'{"image": {"count": 5, "width": 512, "height": 512}}'; a lower limit or a smaller """
        "size reserves less memory, and 0 loads no encoder; numbers of video and audio are "
        f"understood, and count as 0; default: {MAX_IMAGES} images",
        group="images",
        metavar="JSON",
        for_images=True,
    )
    language_model_only: bool = setting(
        False, "do not load the encoder of images: the model reads only text"
    )
    mmproj: str | None = setting(
        None,
        "GGUF file with the vision part of a GGUF model; default: the one file mmproj*.gguf beside "
        "it",
        metavar="PATH",
    )
    mm_processor_kwargs: str | Mapping[str, object] | None = setting(
        None,
        "settings that replace those of the model's image processor, as JSON; example: "
        """'{"do_image_splitting": false}'""",
        metavar="JSON",
        for_images=True,
    )
    mm_processor_cache_gb: float = setting(
        0.5,
        "GiB of memory for the pixels of images that were processed, so that the next request "
        "with one of them need not decode it; 0: none are kept",
        between=(0, 2**20),
        for_images=True,
    )
    disable_mm_preprocessor_cache: bool = setting(
        False, "the same as --mm-processor-cache-gb 0, its newer name"
    )
    allowed_local_media_path: str | None = setting(
        None,
        "folder whose images requests may name by file:// URLs; default: images are data URLs",
        metavar="PATH",
        for_images=True,
    )
    max_image_pixels: int = setting(
        32_000_000,
        "maximum number of pixels of an image, before it is resized",
        between=(1, 2**31),
        for_images=True,
    )

    speculative_model: str | None = setting(
        None,
        "directory or .gguf file of a draft head, or of a smaller model with the same vocabulary; "
        "implies the method draft-model",
        "--spec-model",
        metavar="MODEL",
        group="speculation",
    )
    num_speculative_tokens: int | None = setting(
        None,
        "maximum number of draft tokens of a request in a step, 1 to 16; default: 5",
        "--spec-tokens",
    )
    speculative_adaptive: bool | None = setting(
        None, "on: use the draft length adaptive; off: use fixed"
    )
    speculative_config: str | Mapping[str, object] | None = setting(
        None,
        "method, model, num_speculative_tokens and options of the method as JSON: "
        """'{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'""",
        "-sc",
        metavar="JSON",
    )

    plugins_file: str | None = setting(
        None,
        "plugins.toml to use; default: ./plugins.toml, then the packaged one",
        group="configuration",
        metavar="PATH",
    )
    hook_watchdog_seconds: float = setting(
        5.0,
        "seconds after which a plugin's hook that still runs is logged, with its stack; 0: never",
        metavar="SECONDS",
    )
    plugin_start_timeout: float = setting(
        60.0,
        "seconds without progress after which the start of a plugin fails: its import, `register`, "
        "factories and `lifespan`; waiting for a disk and compiling do not count; 0: no limit",
        metavar="SECONDS",
    )

    disable_log_stats: bool = setting(
        False,
        "do not log a line of statistics every 10 seconds",
        group="monitoring",
    )
    step_log_size: int = setting(
        32 << 20,
        "memory in bytes for the step log, from which `tokenmill why` explains the latency of "
        "recent requests; suffixes K, M and G are allowed; 0: no log",
        between=(0, 2**40),
        metavar="SIZE",
    )
    metrics_prefix: str = setting(
        "tokenmill:",
        "prefix of Prometheus metric names; 'vllm:' fits existing dashboards",
        metavar="TEXT",
    )
    otlp_traces_endpoint: str | None = setting(
        None,
        "URL to send OpenTelemetry traces to, by OTLP over HTTP, such as "
        "http://localhost:4318/v1/traces; needs the extra otel; default: no traces",
        metavar="URL",
    )
    kv_events_config: str | Mapping[str, object] | None = setting(
        None,
        "send events of the prefix cache to routers such as llm-d and Dynamo, with vLLM's keys: "
        """'{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}'; needs the extra """
        "kv-events; default: no events",
        metavar="JSON",
    )

    def __post_init__(self) -> None:
        for declared in fields(self):
            check_value(declared, getattr(self, declared.name))
        if self.model == "":
            raise ConfigError("--model is empty: leave it out for the default model")
        if self.quantize_on_load is not None and self.dtype != "auto":
            raise ConfigError(
                "--quantize-on-load and --dtype contradict each other: remove --dtype"
            )
        if self.cpu_bind != "auto" and self.data_parallel_size > 1:
            raise ConfigError(
                "--cpu-bind names the CPUs of one replica, but --data-parallel-size is "
                f"{self.data_parallel_size}: remove one of them"
            )
        if (router := self.chosen("router")) is not None and self.data_parallel_size == 1:
            raise ConfigError(
                f"--router {router} has no effect on one replica: add --data-parallel-size, "
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
        for name in ("hook_watchdog_seconds", "plugin_start_timeout"):
            if not 0 <= (seconds := getattr(self, name)) < math.inf:
                raise ConfigError(f"{flag(name)} must be 0 or more seconds, got {seconds}")
        if self.override_generation_config is not None:
            defaults = read_sampling_defaults(self.override_generation_config)
            object.__setattr__(self, "override_generation_config", defaults)
        if self.hf_overrides is not None:
            object.__setattr__(self, "hf_overrides", read_hf_overrides(self.hf_overrides))
        check_compilation(self.compilation_config)
        if self.optimization_level is not None:
            check_level("--optimization-level", self.optimization_level)
        if self.cudagraph_capture_sizes is not None:
            check_capture_sizes("--cudagraph-capture-sizes", self.cudagraph_capture_sizes)
        _ = self.image_limit  # raises ConfigError
        if self.mm_processor_kwargs is not None:
            kwargs = read_processor_kwargs(self.mm_processor_kwargs)
            object.__setattr__(self, "mm_processor_kwargs", kwargs)
        for name in ("compilation_config", "cudagraph_capture_sizes", "limit_mm_per_prompt"):
            # Without tuples, a copy in another process is equal.
            plain = msgspec.json.decode(msgspec.json.encode(getattr(self, name)))
            object.__setattr__(self, name, plain)
        self.speculation()

    def chosen(self, slot: str) -> str | None:
        """The name that chooses the provider of a slot; None: plugins.toml decides."""
        name: str | None = getattr(self, slot)
        return name

    def named(self, kind: str) -> tuple[str, ...]:
        """The names in a setting that takes several, with commas."""
        return tuple(filter(None, map(str.strip, (self.chosen(kind) or "").split(","))))

    def speculation(self) -> SpeculationSettings:
        """The settings of speculation, with --speculative-config parsed. Raises ConfigError."""
        return read_speculation(
            method=self.chosen("speculative_method"),
            model=self.speculative_model,
            num_speculative_tokens=self.num_speculative_tokens,
            config=self.speculative_config,
        )

    @property
    def image_limit(self) -> ImageLimit:
        """The images that a prompt may have: 0 with --language-model-only."""
        limit = image_limit(self.limit_mm_per_prompt)
        return ImageLimit(count=0) if self.language_model_only else limit

    @property
    def media_cache_bytes(self) -> int:
        """Memory for the pixels of images that were processed."""
        if self.disable_mm_preprocessor_cache:
            return 0
        return int(self.mm_processor_cache_gb * 2**30)

    @property
    def num_ranks(self) -> int:
        """Number of processes that compute the model together."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def token_budget(self, device: str, span_tokens: int = 0) -> int:
        """Tokens per step: `max_num_batched_tokens`, or its default for "cpu" or "cuda".

        `span_tokens`: see ModelInfo.largest_span_tokens. A step has room for these and for
        max_num_seqs decodes, so that every span is computed at some time. Raises ConfigError if
        `max_num_batched_tokens` is smaller.

        On a CPU 256 tokens already keep the cores busy. A larger step is hardly faster per token,
        and running answers wait longer for it (benchmarks/token_budget.py). The default is at least
        max_num_seqs, so that every running request can get its token in one step. A GPU needs more
        tokens to be busy.
        """
        needed = span_tokens + self.max_num_seqs if span_tokens else 0
        given = self.max_num_batched_tokens
        if given is None:
            least = 8192 if device.startswith("cuda") else max(256, self.max_num_seqs)
            return max(least, needed)
        if given < needed:
            room = given - span_tokens
            remedy = f", or set --max-num-seqs to {room}" if room > 0 else ""
            raise ConfigError(
                f"--max-num-batched-tokens is {given}, but a step must have room for an image of "
                f"{span_tokens} tokens and for {self.max_num_seqs} decodes (--max-num-seqs): raise "
                f"it to {needed}{remedy}"
            )
        return given

    @property
    def capture_sizes(self) -> tuple[int, ...]:
        """Numbers of decodes for which CUDA graphs are captured, ascending; empty: none."""
        if self.enforce_eager or self.optimization_level == 0:
            return ()
        return capture_sizes(
            self.compilation_config,
            sizes=self.cudagraph_capture_sizes,
            max_size=self.max_cudagraph_capture_size,
            max_num_seqs=self.max_num_seqs,
        )

    @property
    def given(self) -> tuple[Field[Any], ...]:
        """The settings that differ from their defaults."""
        return tuple(f for f in fields(self) if getattr(self, f.name) != f.default)

    @classmethod
    def from_options(cls, **options: Any) -> Self:
        """Make a configuration from keywords, which may be other names of settings. None counts as
        not given, as in vLLM.

        Raises ConfigError for an unknown name, and for a setting that is given twice.
        """
        names = {name: f.name for f in fields(cls) for name in arguments(f)}
        values: dict[str, Any] = {}
        for given, value in options.items():
            name = names.get(given)
            if name is None:
                near = refusal(given) or did_you_mean(given, names)
                raise ConfigError(f"unknown option {given!r}{near}")
            if name in values:
                raise ConfigError(f"{name} is given twice: {given} is another name of it")
            if value is not None:
                values[name] = value
        return cls(**values)
