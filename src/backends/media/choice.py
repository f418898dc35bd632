"""Turns the chosen media processor into the reader of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.contract.choice import Choice
from ...core.contract.providers.media_processing import MediaProcessor
from ...core.contract.registry import Provider, Registry
from ...core.errors import ConfigError
from ...core.interfaces import MediaInfo, Tokenizer
from ...core.log import get_logger
from ..choosing.auto import options_of
from ..choosing.importable import factory_name, options_name
from .messages import ProcessorStart
from .reader import ImageReader

log = get_logger("media")


def make_image_reader(
    registry: Registry,
    choice: Choice,
    media: MediaInfo,
    tokenizer: Tokenizer,
    *,
    kwargs: Mapping[str, Any],
    max_pixels: int,
    cache_bytes: int,
) -> ImageReader:
    """The reader of images, with the first chosen processor that fits the model.

    `kwargs`: what --mm-processor-kwargs changes. `max_pixels`: of one image, before it is resized.
    `cache_bytes`: memory for the pixels of known images; 0: none are kept. Raises ConfigError if no
    processor fits, and for wrong `kwargs`. Imports neither Pillow nor numpy.
    """
    provider, options, processor = _choose(registry, choice, media.config)
    processor(media.config, kwargs)  # raises ConfigError now, and not with the first image
    start = ProcessorStart(
        factory=factory_name(provider),
        options=options,
        options_type=options_name(provider),
        config=dict(media.config),
        kwargs=dict(kwargs),
        max_pixels=max_pixels,
    )
    return ImageReader(
        start,
        tokenizer,
        placeholder_token_id=media.placeholder_token_id,
        cache_bytes=cache_bytes,
    )


def _choose(
    registry: Registry, choice: Choice, config: Mapping[str, Any]
) -> tuple[Provider, dict[str, object], type[MediaProcessor]]:
    passed_over: list[str] = []
    for provider in (choice.provider, *choice.others):
        options = options_of(provider, choice.options) if choice.others else dict(choice.options)
        found = registry.build(provider.kind, provider.name, options, where=choice.origin)
        reasons = found.reasons_against(config)
        if not reasons:
            log.debug("media_processor_chosen", processor=provider.name, passed_over=passed_over)
            return provider, options, found
        passed_over += [f"{provider.name}: {reason}" for reason in reasons]
    raise ConfigError(f"no media processor fits the model ({'; '.join(passed_over)})")
