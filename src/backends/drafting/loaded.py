"""Loaded draft models: a whole model, or a draft head. Each implements DraftModel."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.contract.providers.speculation import Draft, ProposalBatch
from ...core.log import get_logger
from ..attention.base import AttentionSpec
from ..linear.base import Embedding
from ..models.draft_head import DraftHead
from ..models.draft_head_files import DraftHeadFiles
from ..running.layered_model import LayeredModel
from ..running.parts.model_parts import ModelParts
from ..running.runner import ModelRunner
from ..weights.checkpoint import Checkpoint
from ..weights.draft_vocabulary import read_draft_vocabulary
from .head_runner import DraftHeadRunner, HeadModel, TorchHead
from .model_runner import DraftParts, DraftRunner
from .passes import DraftPasses

log = get_logger("speculation")


class DraftModelElsewhere:
    """A draft model that the last stage of the target loads. It has KV: draft heads, which have
    none, are refused there."""

    has_kv_cache = True
    needs_hidden_states = False

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        raise AssertionError("only the last stage of a model drafts")


class LoadedDraftModel:
    """A whole draft model. Its runner is made in `start`, when the KV cache's size is known."""

    has_kv_cache = True
    needs_hidden_states = False

    def __init__(self, checkpoint: Checkpoint, parts: ModelParts, vocab_size: int) -> None:
        self._checkpoint = checkpoint
        self._parts = parts
        self._runner: DraftRunner | None = None
        token_ids_d = read_draft_vocabulary(checkpoint)
        device = parts.spec.device
        self._token_ids_d = None if token_ids_d is None else token_ids_d.to(device)
        self._vocab_size = vocab_size

    @property
    def name(self) -> str:
        return self._checkpoint.name

    @property
    def bytes_per_block(self) -> int:
        """The draft model's share of one block of the KV cache."""
        return self._parts.bytes_per_block

    def start(self, num_blocks: int, num_host_blocks: int, target: ModelRunner) -> DraftRunner:
        """Allocate the draft model's KV cache. The returned runner must see every plan."""
        parts, decoder = self._parts, self._parts.decoder
        cache = parts.allocate_cache(num_blocks, num_host_blocks)
        self._runner = DraftRunner(
            DraftParts(
                model=parts.step_model(cache) or LayeredModel(decoder, parts.attention, cache),
                attention=parts.attention,
                kv_cache=cache,
                num_host_blocks=num_host_blocks,
                max_len=decoder.config.max_position_embeddings,
                token_ids_d=self._token_ids_d,
                vocab_size=self._vocab_size,
            ),
            target.states,
        )
        log.info(
            "draft_model_loaded",
            model=self.name,
            dtype=str(parts.spec.dtype).removeprefix("torch."),
            num_layers=decoder.config.num_layers,
            num_parameters=decoder.num_parameters,
            num_logits=decoder.config.num_logits,
            weights_mib=decoder.num_bytes >> 20,
            kv_cache_mib=num_blocks * parts.bytes_per_block >> 20,
        )
        return self._runner

    def stop(self) -> None:
        """Release the KV cache and the target."""
        self._runner = None

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        assert self._runner is not None, "nothing is proposed before the first step"
        return self._runner.propose(batch)


class LoadedDraftHead:
    """A draft head, which continues the target's hidden states and needs no KV cache."""

    has_kv_cache = False
    needs_hidden_states = True
    bytes_per_block = 0

    def __init__(self, files: DraftHeadFiles, head: DraftHead, spec: AttentionSpec) -> None:
        """`spec` is the target's attention specification."""
        self._files = files
        self._head = head
        self._spec = spec
        self._token_ids_d = files.token_ids().to(spec.device)
        self._runner: DraftHeadRunner | None = None

    @property
    def name(self) -> str:
        return self._files.name

    def start(self, num_blocks: int, num_host_blocks: int, target: ModelRunner) -> None:
        """Take the target's embedding, states and sampling operations. Blocks are not used."""
        config = self._files.config
        passes = DraftPasses(
            self._spec.device,
            token_ids_d=self._token_ids_d,
            vocab_size=config.vocab_size,
            sampling=target.sampling,
        )
        model = self._one_call(target.embedding) or TorchHead(self._head, target.embedding)
        self._runner = DraftHeadRunner(model, passes, target.states)
        log.info(
            "draft_model_loaded",
            model=self.name,
            dtype=str(self._spec.dtype).removeprefix("torch."),
            num_layers=0,
            num_parameters=self._head.num_parameters,
            num_logits=config.draft_vocab_size,
            weights_mib=self._head.num_bytes >> 20,
            kv_cache_mib=0,
        )

    def _one_call(self, embedding: Embedding) -> HeadModel | None:
        """A head that computes a pass in one native call; None unless all its parts are native."""
        if embedding.device.type != "cpu":
            return None
        from ..cpu.draft_head_call import make_draft_head_call

        return make_draft_head_call(self._head, embedding)

    def stop(self) -> None:
        self._runner = None

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]:
        assert self._runner is not None, "nothing is proposed before the first step"
        return self._runner.propose(batch)
