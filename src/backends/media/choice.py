"""Turns the chosen media processor into the reader of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...core.contract.choice import Choice
from ...core.contract.providers.media_processing import MediaProcessor
from ...core.contract.registry import Provider, Registry, label
from ...core.contract.start_calls import START_CALLS
from ...core.errors import CONTAINED, ConfigError, PluginError, TokenmillError, describe
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
    # Raises ConfigError now, and not with the first image.
    _call("__init__", provider, processor, media.config, kwargs)
    start = ProcessorStart(
        plugin=str(provider.source),
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
        reasons = _call("reasons_against", provider, _reasons, found, config)
        if not reasons:
            log.debug("media_processor_chosen", processor=provider.name, passed_over=passed_over)
            return provider, options, found
        passed_over += [f"{provider.name}: {reason}" for reason in reasons]
    raise ConfigError(f"no media processor fits the model ({'; '.join(passed_over)})")


def _reasons(processor: type[MediaProcessor], config: Mapping[str, Any]) -> list[str]:
    return list(processor.reasons_against(config))


def _call(what: str, provider: Provider, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a plugin. Raises PluginError for an exception that it must not raise."""
    where = f"in {what!r} of {label(provider.kind)} {provider.name!r} of"
    try:
        return START_CALLS.call(where, provider.source, function, *arguments)
    except TokenmillError:
        raise
    except CONTAINED as error:
        raise PluginError(f"{provider.source} failed in {what!r}: {describe(error)}") from error
