"""Takes the place of the bridge if the package transformers is not installed."""

from __future__ import annotations

from ....core.errors import ConfigError
from ...weights.checkpoint import Checkpoint
from ..base import LoadOptions, Model, ModelSpec

_NEEDED = "it needs the package transformers: pip install 'transformers>=5'"


class MissingTransformers:
    """Serves no model, and says why; see ModelImpl."""

    name = "transformers"
    keeps_packed = is_divisible = False

    def __init__(self, spec: ModelSpec) -> None:
        raise ConfigError(_NEEDED)

    @classmethod
    def reasons_against(cls, spec: ModelSpec) -> list[str]:
        return [_NEEDED]

    def open(self) -> Checkpoint:
        raise ConfigError(_NEEDED)

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> Model:
        raise ConfigError(_NEEDED)
