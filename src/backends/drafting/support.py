"""The executor's SpeculationSupport: it loads a draft model for a speculator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

from ...core.config import EngineConfig
from ...core.contract.providers.speculation import (
    Draft,
    DraftModel,
    ProposalBatch,
    SpeculationLimits,
    SpeculationSupport,
)
from ...core.errors import ConfigError
from ...core.interfaces import Progress, Tokenizer
from ...core.log import get_logger
from ..models.draft_head_files import DraftHeadFiles, is_draft_head
from ..models.opening import in_float16, open_as_stored
from ..running.parts.model_parts import Backends, choose_spec, linear_spec, load_parts
from ..running.runner import ModelRunner
from ..text.load import load_tokenizer
from ..weights.checkpoint import Checkpoint
from ..weights.hub.location import locate_model
from .loaded import DraftModelElsewhere, LoadedDraftHead, LoadedDraftModel
from .model_runner import DraftRunner

log = get_logger("speculation")


class Speculation(Protocol):
    """The speculator as the executor uses it. PluginHost.speculator returns one."""

    @property
    def limits(self) -> SpeculationLimits: ...
    @property
    def needs_hidden_states(self) -> bool:
        """Whether `propose` needs the model's hidden states. Final after `prepare`."""
        ...

    def prepare(self, support: SpeculationSupport) -> None: ...
    def propose(self, batch: ProposalBatch) -> Sequence[Draft]: ...


class DraftSupport:
    """Implements SpeculationSupport. Draft models are loaded before the KV cache is sized, because
    they share the memory; `start` follows afterwards.

    The last stage of the target drafts. In other stages, this only finds out whether there is a
    draft model with KV in the blocks, which changes the groups of layers.
    """

    def __init__(
        self,
        target: Checkpoint,
        config: EngineConfig,
        backends: Backends,
        progress: Progress,
        num_speculative_tokens: int,
    ) -> None:
        self._target = target
        self._config = config
        self._backends = backends
        self._progress = progress
        self.num_speculative_tokens = num_speculative_tokens
        self.shares_blocks = False
        """Whether the draft model's KV is in the blocks of the target's, final after `prepare`."""
        self._loaded: LoadedDraftModel | LoadedDraftHead | None = None

    @property
    def vocab_size(self) -> int:
        return self._target.config.vocab_size

    @property
    def hidden_size(self) -> int:
        """Width of the target's hidden states."""
        return self._target.config.hidden_size

    @cached_property
    def tokenizer(self) -> Tokenizer:
        chosen = self._config.tokenizer
        return load_tokenizer(self._locate(chosen, False) if chosen else self._target.path)

    @property
    def bytes_per_block(self) -> int:
        """The draft model's share of one block of the KV cache; 0 without one."""
        return 0 if self._loaded is None else self._loaded.bytes_per_block

    @property
    def name(self) -> str | None:
        """The draft model's name; None without a draft model."""
        return None if self._loaded is None else self._loaded.name

    def load_draft_model(self, path: Path) -> DraftModel:
        """See SpeculationSupport. Also raises ConfigError if it is called twice."""
        if self._loaded is not None:
            raise ConfigError(f"{self.name} is the draft model already: there can be only one")
        if not self._target.config.has_head:
            self.shares_blocks = True
            return DraftModelElsewhere()
        path = self._locate(str(path), self._config.allow_download)
        load = self._load_head if is_draft_head(path) else self._load_model
        self._loaded = load(path)
        self.shares_blocks = self._loaded.has_kv_cache
        return self._loaded

    def _locate(self, text: str, allow_download: bool) -> Path:
        return locate_model(text, allow_download=allow_download, progress=self._progress)

    def probs_bytes(self, max_num_seqs: int) -> int:
        """Maximum memory for the drafts' distributions, from drawing to verification: the draft
        model's, the target's in the same rows, and the residual of the two."""
        if self._loaded is None:
            return 0
        float_bytes, num_copies = 4, 3
        num_rows = max_num_seqs * self.num_speculative_tokens
        return num_copies * num_rows * self.vocab_size * float_bytes

    def start(
        self, num_blocks: int, num_host_blocks: int, target: ModelRunner
    ) -> DraftRunner | None:
        """Start the draft model with its share of the KV cache. Returns the runner that must see
        every plan; None if there is no draft model, or it needs no plans."""
        if self._loaded is None:
            return None
        return self._loaded.start(num_blocks, num_host_blocks, target)

    def stop(self) -> None:
        """Release what `start` passed on: the speculator may live longer than the executor."""
        if self._loaded is not None:
            self._loaded.stop()

    def _load_model(self, path: Path) -> LoadedDraftModel:
        backends = self._backends
        stored, impl = open_as_stored(path, backends.models, backends.methods)
        checkpoint = in_float16(stored, impl, self._config)
        self._check_vocabulary(checkpoint)
        called = f"the draft model {checkpoint.name}"
        spec = choose_spec(checkpoint, self._config, backends, self._progress, called)
        parts = load_parts(checkpoint, self._config, backends, spec, self._progress, impl)
        return LoadedDraftModel(checkpoint, parts, self.vocab_size)

    def _load_head(self, path: Path) -> LoadedDraftHead:
        if not self._target.config.has_embedding:
            raise ConfigError(
                "a draft head reads the model's embedding, which is in another stage: use another "
                "speculative method, or --pipeline-parallel-size 1"
            )
        files = DraftHeadFiles(path.expanduser())
        found = files.config.vocab_size, files.config.hidden_size
        if found != (self.vocab_size, self.hidden_size):
            raise ConfigError(
                f"{path} is a draft head for a vocabulary of {found[0]} tokens and hidden size "
                f"{found[1]}, but {self._target.name} has {self.vocab_size} and "
                f"{self.hidden_size}: use a head that was made for this model"
            )
        if files.made_for != self._target.name:
            log.warning(
                "draft_head_made_for_another_model",
                head=files.name,
                made_for=files.made_for,
                model=self._target.name,
                consequence="if the models' weights differ, nearly all drafts will be rejected",
            )
        spec = choose_spec(self._target, self._config, self._backends, self._progress)
        products = linear_spec(spec)
        head = files.load(self._backends.linear(products), products)
        return LoadedDraftHead(files, head, spec)

    def _check_vocabulary(self, draft: Checkpoint) -> None:
        """Raises ConfigError that names the first difference from the target's vocabulary."""
        found, wanted = draft.config.vocab_size, self.vocab_size
        if found != wanted:
            raise ConfigError(
                f"{draft.path} has a vocabulary of {found} tokens and {self._target.name} one of "
                f"{wanted}: use a draft model with the same vocabulary"
            )
        difference = first_difference(self.tokenizer, load_tokenizer(draft.path), vocab_size=wanted)
        if difference is not None:
            raise ConfigError(
                f"the vocabulary of {draft.path} differs from that of {self._target.name}: "
                f"{difference}"
            )


def first_difference(target: Tokenizer, draft: Tokenizer, *, vocab_size: int) -> str | None:
    """Describe the first token id that stands for different bytes; None if all tokens agree."""
    for token_id in range(vocab_size):
        wanted, found = target.token_bytes(token_id), draft.token_bytes(token_id)
        if wanted != found:
            return f"token {token_id} stands for {found!r}, not {wanted!r}"
    return None
