"""Runs a whole decoder as one call of the native library, without Python between its layers.

Shape suffixes: t tokens, r sampled rows, e hidden size, i intermediate size, v vocabulary.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import accumulate

import numpy as np
import torch

from ..attention.base import AttentionBackend
from ..machine.step_regions import StepRegions
from ..models.base import Model
from ..models.pipeline_parallel import StagedDecoder
from ..state.input_batch import InputBatch
from ..state.kv_cache import KVCache
from .attention import CPUAttention
from .decoder_description import DecoderDescription, decoder_of
from .decoder_turns import TurnedLayers
from .native.library import Element, load_library
from .native.structures import DecoderModelStruct, DecoderStepStruct, EmbeddingStruct
from .regions import CallMarks
from .sampling import NativeSampling

_ALIGNMENT = 64
"""Elements. Each buffer of the scratch memory starts on its own cache line."""
_POINTER = ctypes.c_void_p


class Phase(IntEnum):
    """Phases of a call whose times are measured: `Phase` of csrc/decoder/decoder.h."""

    EMBED = 0
    NORM = 1
    QKV = 2
    ROTATE_AND_WRITE = 3
    ATTENTION = 4
    ATTENTION_OUTPUT = 5
    GATE_UP = 6
    DOWN = 7
    LOGITS = 8
    WAIT = 9
    """Time that the first thread waits for the others."""


class DecoderCall:
    """Computes the steps of a native decoder, or of a stage of one: StepModel of runner.py,
    StageModel of stage_runner.py and RowsModel of image_model.py, by the native library."""

    def __init__(
        self, model: Model, attentions: Sequence[AttentionBackend], kv_cache: KVCache
    ) -> None:
        """`attentions` has the attention of every layer. See `reasons_against` for the models."""
        decoder, native = (
            decoder_of(model),
            [one for one in attentions if isinstance(one, CPUAttention)],
        )
        assert decoder is not None and len(native) == len(attentions)
        self._attentions = list(dict.fromkeys(native))
        groups = dict(zip(native, kv_cache.groups.group_of_layer, strict=True))
        self._groups = [groups[one] for one in self._attentions]
        self._slots = (_POINTER * len(self._attentions))()
        self._plans = (_POINTER * len(self._attentions))()
        self._config = decoder.config
        self._neighbours = model.neighbours if isinstance(model, StagedDecoder) else None
        self._kept = decoder, kv_cache
        """Objects that the structures point to."""
        self._caches = (_POINTER * len(kv_cache.layers))(
            *(layer.data_ptr() for layer in kv_cache.layers)
        )
        plans = [self._attentions.index(one) for one in native]
        self._model = DecoderDescription(decoder, native[0].struct, plans)
        self._from_rows = DecoderModelStruct.from_buffer_copy(self._model.struct)
        """The same model without an embedding: it takes hidden states."""
        self._from_rows.embedding = EmbeddingStruct()
        self._turned = TurnedLayers(decoder, self._model.struct)
        self._nanoseconds: ctypes.Array[ctypes.c_int64] | None = None
        self._marks = CallMarks(decoder.config)
        self.regions = StepRegions()
        """Gets the regions of each call, if the regions of the step are measured."""
        self._load = decoder.expert_load
        experts = decoder.config.experts
        self._expert_tokens = (ctypes.c_int64 * (experts.num_experts if experts else 0))()
        is_float32 = native[0].struct.element == Element.F32
        self.dtype = torch.float32 if is_float32 else torch.bfloat16
        """Type of hidden states."""
        self._scratch = torch.empty(0, dtype=self.dtype)
        self._sampled = 0, 0
        """Address and number of the hidden states of the last call's sampled rows."""
        library = load_library()
        self.sampling = NativeSampling(library)
        self._run = library.computing(
            "tm_run_decoder", "a decoder's step", DecoderModelStruct, DecoderStepStruct
        )

    def logits(self, batch: InputBatch) -> torch.Tensor:
        return self._logits(batch, self._begin(batch), self._model.struct)

    def logits_from(self, hidden_te: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        return self._logits(batch, hidden_te.to(self.dtype), self._from_rows)

    def _logits(
        self, batch: InputBatch, hidden_te: torch.Tensor | None, model: DecoderModelStruct
    ) -> torch.Tensor:
        config = self._config
        # Allocated by numpy, not torch: a torch operation before the call would let the event loop
        # take the GIL and deliver a whole step first.
        num_sampled = batch.sampled_rows_r.shape[0]
        logits_rv = torch.from_numpy(np.empty((num_sampled, config.num_logits), np.float32))
        self._compute(batch, hidden_te, logits_rv, model)
        cap = config.logits_soft_cap
        return logits_rv if cap is None else logits_rv.div_(cap).tanh_().mul_(cap)

    def forward(self, batch: InputBatch) -> torch.Tensor:
        hidden_te = self._begin(batch)
        assert hidden_te is not None, "it is a stage"
        return self._forward(batch, hidden_te, self._model.struct)

    def forward_from(self, hidden_te: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        return self._forward(batch, hidden_te.to(self.dtype), self._from_rows)

    def _forward(
        self, batch: InputBatch, hidden_te: torch.Tensor, model: DecoderModelStruct
    ) -> torch.Tensor:
        assert self._neighbours is not None, "it is a stage"
        self._compute(batch, hidden_te, None, model)
        self._neighbours.send(hidden_te)
        return hidden_te

    def _begin(self, batch: InputBatch) -> torch.Tensor | None:
        """Receive the hidden states before the first layer. In the first stage, return new memory
        for them: the ones of the step before may still be on their way to the next stage.

        None: the model is not divided, so they stay within the call.
        """
        if self._neighbours is None:
            return None
        shape = len(batch.token_ids_t), self._config.hidden_size
        if self._config.has_embedding:
            return torch.empty(shape, dtype=self.dtype)
        return self._neighbours.receive(*shape, self.dtype)

    def _compute(
        self,
        batch: InputBatch,
        hidden_te: torch.Tensor | None,
        logits_rv: torch.Tensor | None,
        model: DecoderModelStruct,
    ) -> None:
        """Compute all layers on `hidden_te`, contiguous [t, e], and then `logits_rv`."""
        config, num_tokens = self._config, batch.token_ids_t.shape[0]
        positions_t = batch.positions_t
        if batch.rotary_3t is not None:
            model, positions_t = self._turned.follow(model, batch.rotary_3t)
        num_sampled = 0 if logits_rv is None else logits_rv.shape[0]
        batches = batch.attention.by_group
        parts = [batches[group] for group in self._groups]
        pairs = zip(self._attentions, parts, strict=True)
        metadata = [one.build_metadata(part) for one, part in pairs]
        self._plans[:] = [one.plan.address for one in metadata]
        self._slots[:] = [part.slot_mapping_t.data_ptr() for part in parts]
        q_size = config.num_heads * config.head_size
        kv_size = config.num_kv_heads * config.head_size

        hidden, normed, qkv, attended, inner, sampled = self._take_scratch(
            [
                num_tokens * config.hidden_size,
                num_tokens * config.hidden_size,
                num_tokens * (q_size + 2 * kv_size),
                num_tokens * q_size,
                num_tokens * config.intermediate_size,
                num_sampled * config.hidden_size,
            ]
        )
        step = DecoderStepStruct(
            num_tokens=num_tokens,
            token_ids=batch.token_ids_t.data_ptr(),
            positions=positions_t.data_ptr(),
            slots=self._slots,
            plans=self._plans,
            kv_caches=self._caches,
            hidden=hidden if hidden_te is None else hidden_te.data_ptr(),
            normed=normed,
            qkv=qkv,
            attended=attended,
            inner=inner,
            num_sampled=num_sampled,
            sampled_rows=batch.sampled_rows_r.data_ptr(),
            sampled=sampled,
            logits=None if logits_rv is None else logits_rv.data_ptr(),
            nanoseconds=None if self._nanoseconds is None else ctypes.addressof(self._nanoseconds),
        )
        if self._load is not None:
            ctypes.memset(self._expert_tokens, 0, ctypes.sizeof(self._expert_tokens))
            step.expert_tokens = ctypes.addressof(self._expert_tokens)
        if self.regions.is_measured:
            self._run_measured(model, step)
        else:
            self._run(ctypes.byref(model), ctypes.byref(step))
        if self._load is not None:
            self._load.add(tuple(self._expert_tokens))
        self._sampled = sampled, num_sampled

    def _run_measured(self, model: DecoderModelStruct, step: DecoderStepStruct) -> None:
        step.marks = self._marks.address
        began = time.monotonic()
        self._run(ctypes.byref(model), ctypes.byref(step))
        embeds = bool(model.embedding.table or model.embedding.packed)
        self.regions.add(self._marks.read(began, embeds=embeds, samples=step.num_sampled > 0))

    def hidden_states(self) -> torch.Tensor:
        """Hidden states after the last norm of the rows of the last `logits`, [r, e].

        The next call overwrites them.
        """
        (address, num_rows), size = self._sampled, self._config.hidden_size
        begin = (address - self._scratch.data_ptr()) // self._scratch.itemsize
        return self._scratch[begin : begin + num_rows * size].view(num_rows, size)

    def _take_scratch(self, sizes: Sequence[int]) -> list[int]:
        """Addresses of buffers of these sizes. The next call gets the same memory."""
        ends = list(accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes))
        if ends[-1] > self._scratch.shape[0]:
            self._scratch = torch.empty(ends[-1], dtype=self.dtype)
        first = self._scratch.data_ptr()
        return [first + self.dtype.itemsize * start for start in (0, *ends[:-1])]

    def start_timing(self) -> None:
        """Measure the time of each phase from now on.

        It cannot be stopped, because a running call holds the counters.
        """
        if self._nanoseconds is None:
            self._nanoseconds = (ctypes.c_int64 * len(Phase))()

    def read_timing(self) -> Mapping[Phase, float]:
        """Seconds per phase since `start_timing`: the first thread's, over all calls and layers."""
        assert self._nanoseconds is not None
        return {phase: self._nanoseconds[phase] / 1e9 for phase in Phase}
