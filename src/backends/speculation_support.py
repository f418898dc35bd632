"""What the executor offers a speculator while the model is loaded: a draft model, if it wants one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..core.config import EngineConfig
from ..core.errors import ConfigError
from ..core.interfaces import Progress
from ..core.log import get_logger
from ..core.speculation import (
    Draft,
    DraftModel,
    ProposalBatch,
    SpeculationLimits,
    SpeculationSupport,
)
from .attention.base import AttentionBackend
from .draft_runner import DraftParts, DraftRunner
from .model_parts import ModelParts, choose_spec, load_parts
from .request_state import RequestState
from .runner import LayeredModel
from .text.load import load_tokenizer
from .text.tokenizer import HFTokenizer
from .weights.checkpoint import Checkpoint, open_checkpoint
from .weights.draft_vocabulary import read_draft_vocabulary

log = get_logger("speculation")


class Speculation(Protocol):
    """What the executor is told of the speculator: PluginHost.speculator."""

    @property
    def limits(self) -> SpeculationLimits: ...
    def prepare(self, support: SpeculationSupport) -> None: ...
    def propose(self, batch: ProposalBatch) -> Sequence[Draft]: ...


class DraftSupport:
    """Implements SpeculationSupport. It comes before the KV cache is sized; `start` after that."""

    def __init__(
        self,
        target: Checkpoint,
        config: EngineConfig,
        attention_backend: type[AttentionBackend],
        progress: Progress,
        num_speculative_tokens: int,
    ) -> None:
        self._target = target
        self._config = config
        self._backend = attention_backend
        self._progress = progress
        self._num_speculative_tokens = num_speculative_tokens
        self._loaded: _LoadedDraft | None = None

    @property
    def vocab_size(self) -> int:
        return self._target.config.vocab_size

    @property
    def num_speculative_tokens(self) -> int:
        """The most that is ever asked for."""
        return self._num_speculative_tokens

    @property
    def bytes_per_block(self) -> int:
        """What a block of the KV cache needs more for the draft model."""
        return 0 if self._loaded is None else self._loaded.parts.bytes_per_block

    @property
    def name(self) -> str | None:
        """Of the draft model; None: there is none."""
        return None if self._loaded is None else self._loaded.checkpoint.name

    def load_draft_model(self, path: Path) -> DraftModel:
        """See SpeculationSupport. Raises ConfigError when it is called twice, too."""
        if self._loaded is not None:
            raise ConfigError(f"{self.name} is the draft model already: there can be only one")
        checkpoint = open_checkpoint(path)
        self._check_vocabulary(checkpoint)
        called = f"the draft model {checkpoint.name}"
        spec = choose_spec(checkpoint, self._config, self._backend, called)
        parts = load_parts(checkpoint, self._config, self._backend, spec, self._progress)
        self._loaded = _LoadedDraft(checkpoint, parts, self.vocab_size)
        return self._loaded

    def start(
        self, num_blocks: int, num_host_blocks: int, states: Mapping[str, RequestState]
    ) -> DraftRunner | None:
        """Give the draft model its part of the KV cache; `states` are those of the target's runner.
        None when there is no draft model."""
        if self._loaded is None:
            return None
        self._loaded.start(num_blocks, num_host_blocks, states)
        return self._loaded.runner

    def _check_vocabulary(self, draft: Checkpoint) -> None:
        """Raises ConfigError that names the first difference."""
        found, wanted = draft.config.vocab_size, self.vocab_size
        if found != wanted:
            raise ConfigError(
                f"{draft.path} has a vocabulary of {found} tokens and {self._target.name} one of "
                f"{wanted}: a draft model must have the same"
            )
        source = Path(self._config.tokenizer) if self._config.tokenizer else self._target.path
        difference = first_difference(
            load_tokenizer(source), load_tokenizer(draft.path), vocab_size=wanted
        )
        if difference is not None:
            raise ConfigError(
                f"the vocabulary of {draft.path} is not that of {self._target.name}: {difference}"
            )


class _LoadedDraft:
    """Implements DraftModel: a runner, as soon as there is a KV cache."""

    def __init__(self, checkpoint: Checkpoint, parts: ModelParts, vocab_size: int) -> None:
        self.checkpoint = checkpoint
        self.parts = parts
        self.runner: DraftRunner | None = None
        token_ids_d = read_draft_vocabulary(checkpoint)
        device = parts.spec.device
        self._token_ids_d = None if token_ids_d is None else token_ids_d.to(device)
        self._vocab_size = vocab_size

    def start(
        self, num_blocks: int, num_host_blocks: int, states: Mapping[str, RequestState]
    ) -> None:
        parts, decoder = self.parts, self.parts.decoder
        cache = parts.allocate_cache(num_blocks, num_host_blocks)
        self.runner = DraftRunner(
            DraftParts(
                model=parts.whole_call(cache) or LayeredModel(decoder, parts.attention, cache),
                attention=parts.attention,
                kv_cache=cache,
                num_host_blocks=num_host_blocks,
                max_len=decoder.config.max_position_embeddings,
                token_ids_d=self._token_ids_d,
                vocab_size=self._vocab_size,
            ),
            states,
        )
        log.info(
            "draft_model_loaded",
            model=self.checkpoint.name,
            dtype=str(parts.spec.dtype).removeprefix("torch."),
            num_layers=decoder.config.num_layers,
            num_parameters=decoder.num_parameters,
            num_logits=decoder.config.num_logits,
            weights_mib=decoder.num_bytes >> 20,
            kv_cache_mib=num_blocks * parts.bytes_per_block >> 20,
        )

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        """See DraftModel."""
        assert self.runner is not None, "nothing is proposed before the first step"
        return self.runner.propose(batch)


def first_difference(target: HFTokenizer, draft: HFTokenizer, *, vocab_size: int) -> str | None:
    """In words, of two vocabularies; None when each id stands for the same in both."""
    for token_id in range(vocab_size):
        wanted, found = target.token_bytes(token_id), draft.token_bytes(token_id)
        if wanted != found:
            return f"token {token_id} stands for {found!r}, not {wanted!r}"
    return None
