"""Checks the sampling defaults that a model's publisher recommends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....core.errors import ConfigError, InvalidRequestError
from ....core.requests.sampling_params import SamplingParams


def check_sampling_defaults(found: Mapping[str, Any], *, source: str) -> dict[str, float | int]:
    """Return the defaults that are not None, by field of SamplingParams.

    Raises ConfigError if one is out of range.
    """
    defaults = {name: value for name, value in found.items() if value is not None}
    try:
        SamplingParams(**defaults)
    except InvalidRequestError as error:
        raise ConfigError(f"{source} recommends invalid sampling parameters: {error}") from error
    return defaults
