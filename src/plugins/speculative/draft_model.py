"""A smaller model drafts: one with the target's vocabulary, or a head on its hidden states.

Sources: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding"; for
heads, Ankner et al. 2024, "Hydra". Good for new text; `tokenmill draft make` makes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...plugin import (
    ConfigError,
    Draft,
    DraftModel,
    ProposalBatch,
    Registry,
    SpeculationSupport,
    hookimpl,
    kinds,
)

TOKENMILL_API = (1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModelOptions:
    """Options of [speculative_method] use = "draft-model"."""

    model: str | None = field(
        default=None,
        metadata={
            "help": "directory or .gguf file of a draft head, or of a smaller model with the same "
            "vocabulary; None: --speculative-model names it"
        },
    )


class DraftModelSpeculator:
    """Drafts with the model that the executor loads for it."""

    def __init__(self, options: DraftModelOptions) -> None:
        self._path = options.model
        self._model: DraftModel | None = None

    def prepare(self, support: SpeculationSupport) -> None:
        """Load the model. Raises ConfigError if none is given, or it does not fit the target."""
        if self._path is None:
            raise ConfigError(
                "the speculative method draft-model needs a model: give --speculative-model PATH; "
                "`tokenmill draft make` makes one from a model that you have"
            )
        self._model = support.load_draft_model(Path(self._path))

    @hookimpl
    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        assert self._model is not None, "the engine calls prepare first"
        return self._model.propose(batch)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(
        kinds.SPECULATIVE_METHOD, "draft-model", DraftModelSpeculator, options=DraftModelOptions
    )
