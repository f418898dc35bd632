"""Defaults of sampling parameters that the operator sets; they replace those of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError, InvalidRequestError
from ..requests.sampling_params import MODEL, SamplingParams, sampled_in
from ..wording.suggest import near_and_known
from .checking import read_object

_FLAG = "--override-generation-config"
GENERATION_CONFIG = {name: name for name in sampled_in(MODEL)} | {"max_new_tokens": "max_tokens"}
"""Names in a model's generation_config, with the fields of SamplingParams."""
_NAMES = GENERATION_CONFIG | {"max_tokens": "max_tokens"}


def read_sampling_defaults(given: str | Mapping[str, object]) -> dict[str, Any]:
    """The defaults in JSON text or a mapping, by field of SamplingParams. Raises ConfigError."""
    found = read_object(_FLAG, given, '{"max_new_tokens": 512}')
    for name in found:
        if name not in _NAMES:
            raise ConfigError(
                f"{_FLAG} has the unknown name {name!r}{near_and_known(name, _NAMES)}"
            )
    defaults = {_NAMES[name]: value for name, value in found.items()}
    try:
        SamplingParams(**defaults)
    except InvalidRequestError as error:
        raise ConfigError(f"{_FLAG}: {error}") from error
    return defaults
