"""Groups of flags: their names in `--help=GROUP`, and the flags that the short help shows."""

from __future__ import annotations

from typing import Any

GROUPS = {
    "server": "address, HTTPS, names, keys, origins, limits of requests",
    "process": "the engine's process, hanging steps, the end of the server",
    "monitoring": "logs, metrics, traces",
    "model": "model files, downloads, precision, quantization, context length",
    "answers": "sampling defaults, tool calls, reasoning, grammars, embeddings",
    "cache": "memory, KV cache, prefix caching, swapping",
    "scheduling": "size of a step, queue, order, preemption",
    "parallel": "several workers, replicas or machines",
    "backends": "code that computes models, attention and matrix products",
    "images": "images in prompts: number, size, memory, files",
    "speculation": "draft models and n-grams for faster decoding",
    "configuration": "files of settings and plugins, limits for plugins",
}
"""Every flag of a command that takes engine flags is in one of these, or in a group of its own
command, such as `workload`. EngineConfig names the group of each setting."""

COMMON = {
    "--model": "folder, .gguf file or ORG/NAME",
    "--config": "YAML or TOML file with flags; those given here win",
    "--allow-download": "download MODEL if it is not cached",
    "--host": "address; 0.0.0.0: all",
    "--port": "port; 0: any free one",
    "--api-key": "key that clients must send; may be repeated",
    "--served-model-name": "names of the model in the API",
    "--max-model-len": "maximum length of prompt and answer; 8k: 8000",
    "--dtype": "precision of the model",
    "--quantize-on-load": "quantize a floating-point model to 8 or 4 bits",
    "--gpu-memory-utilization": "fraction of GPU memory to use",
    "--kv-cache-memory": "size of the KV cache, such as 4G",
    "--max-num-seqs": "requests in one step, at most",
    "--max-num-batched-tokens": "tokens in one step, at most",
    "--tensor-parallel-size": "workers that divide each layer",
    "--data-parallel-size": "replicas of the model",
    "--speculative-model": "draft head or smaller model, to answer faster",
    "--scheduler": "policy that fills each step; also a plugin's",
    "--plugins-file": "plugins to enable, and their options",
    "--log-level": "lowest level of log lines",
}
"""Flags that people use in their first week, in this order, with a line that fits beside them."""


def flag_group(parser: Any, name: str) -> Any:
    """The group of this name of a parser; it is added if the parser lacks it."""
    for group in parser._action_groups:
        if group.title == name:
            return group
    return parser.add_argument_group(name, GROUPS[name])


def add_numbers(group: Any, *rows: tuple[str, float | type[float], str]) -> None:
    """Add flags that take a number. A row: name, default or else its type, and help."""
    for name, given, text in rows:
        kind, default = (given, None) if isinstance(given, type) else (type(given), given)
        group.add_argument(name, type=kind, default=default, metavar="N", help=text)
