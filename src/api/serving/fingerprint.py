"""The `system_fingerprint` of answers: the same while version, model and settings are the same."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import msgspec

from ...core.contract.client import EngineClient
from ...core.host.plugins_file import read_settings
from ...version import __version__

NUM_DIGITS = 8


def system_fingerprint(engine: EngineClient) -> str:
    """The fingerprint of a started engine, in vLLM's form: "tokenmill-0.1.0-tp2-1f3a9c04".

    It covers all settings of the engine with the content of plugins.toml, and the facts about the
    model that do not depend on free memory. Raises ConfigError if that file cannot be read.
    """
    config, info = engine.config, engine.info
    facts = (
        replace(config, plugins_file=None),
        *_plugin_settings(config.plugins_file),
        info.name,
        info.architecture,
        info.dtype,
        info.kv_cache_dtype,
        info.device,
        info.num_parameters,
        info.attention_backend,
        info.linear_backend,
    )
    # Programs may give a Path or a torch.dtype as a setting.
    text = msgspec.json.encode(facts, enc_hook=str, order="sorted")
    digest = hashlib.blake2b(text).hexdigest()
    sizes = {
        "tp": config.tensor_parallel_size,
        "pp": config.pipeline_parallel_size,
        "dp": config.data_parallel_size,
    }
    parallel = (f"{name}{size}" for name, size in sizes.items() if size > 1)
    return "-".join(("tokenmill", __version__, *parallel, digest[:NUM_DIGITS]))


def _plugin_settings(plugins_file: str | None) -> tuple[Any, ...]:
    """The content of plugins.toml, wherever the file is."""
    found = read_settings(plugins_file)
    slots = {slot: (table.use, table.options) for slot, table in found.slots.items()}
    named = {".".join(names): table.options for names, table in found.named.items()}
    return found.enabled, found.strict, slots, named
