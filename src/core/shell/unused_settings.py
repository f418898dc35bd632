"""Logs the settings that were given, but have no effect on this device or with this model."""

from __future__ import annotations

from dataclasses import Field
from typing import Any

from ..config import EngineConfig
from ..interfaces import ModelInfo
from ..log import get_logger
from ..settings.declaration import flag

log = get_logger("engine")


def log_unused(config: EngineConfig, info: ModelInfo) -> None:
    """Log a warning for each setting that was given and has no effect."""
    for name, reason in unused_settings(config, info).items():
        log.warning("setting_without_effect", setting=flag(name), reason=reason)
    if config.disable_mm_preprocessor_cache:
        log.warning(
            "setting_renamed",
            setting="--disable-mm-preprocessor-cache",
            use="--mm-processor-cache-gb 0",
        )


def unused_settings(config: EngineConfig, info: ModelInfo) -> dict[str, str]:
    """Why the settings that were given have no effect, by their names."""
    reasons = {given.name: _reason(given, config, info) for given in config.given}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _reason(given: Field[Any], config: EngineConfig, info: ModelInfo) -> str | None:
    on_cpu: str | None = given.metadata.get("unused_on_cpu")
    if on_cpu is not None and info.device == "cpu":
        return on_cpu
    if given.name == "swap_space" and config.swap_space and not info.num_host_blocks:
        return "only --preemption-mode swap uses it"
    if given.metadata.get("for_images") and info.media is None and config.image_limit.count:
        return "the model reads only text"
    return None
