"""Runs a whole decoder as one call of the native library, without Python between its layers.

Shape suffixes: t tokens, r sampled rows, e hidden size, i intermediate size, v vocabulary.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch

from ..attention.base import AttentionBatch
from ..linear.base import Projection
from ..models.decoder import Decoder, DecoderLayer, RMSNorm
from ..models.feed_forward import GatedNetwork
from ..state.input_batch import InputBatch
from ..state.kv_cache import KVCache
from .native.library import load_library
from .native.structures import (
    AttentionSpecStruct,
    DecoderLayerStruct,
    DecoderModelStruct,
    DecoderStepStruct,
)
from .projections import NativeLinear
from .sampling import NativeSampling

_ALIGNMENT = 64
"""Elements. Each buffer of the scratch memory starts on its own cache line."""
_POINTER = ctypes.c_void_p
_FEATURES = {
    "attention_bias",
    "attention_output_bias",
    "attention_soft_cap",
    "draft_vocab_size",
    "embedding_scale",
    "float32_norms",
    "hidden_act",
    "layers",
    "logits_soft_cap",
    "mlp_bias",
    "norm_offset",
    "post_norms",
    "qk_norm",
    "query_pre_attn_scalar",
    "rope",
    "rotary_size",
    "sliding_window",
    "tie_word_embeddings",
}
"""Features of ModelConfig that the library computes. A decoder with any other feature runs
layer by layer, with native products and attention. Only some activations have native products."""
_ROTARY_STEP = 16
"""The library rotates multiples of this number of elements."""


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


class NativeAttention(Protocol):
    """The part of the native attention backend that DecoderCall uses."""

    struct: AttentionSpecStruct

    def build_metadata(self, batch: AttentionBatch) -> Any:
        """The step's metadata, which has its `plan`."""
        ...


def make_decoder_call(
    decoder: Decoder, attentions: Sequence[NativeAttention], kv_cache: KVCache
) -> DecoderCall | None:
    """The call for a decoder; None if the library lacks one of its features or products.

    `attentions` has the attention of every layer.
    """
    config = decoder.config
    if not config.features <= _FEATURES or (config.rotary_size or 0) % _ROTARY_STEP:
        return None
    linears = [linear for layer in decoder.layers for linear in layer.linears]
    is_native = all(isinstance(linear, NativeLinear) for linear in (*linears, decoder.lm_head))
    return DecoderCall(decoder, attentions, kv_cache) if is_native else None


class DecoderCall:
    """Computes a step's logits: StepModel of runner.py by the native library."""

    def __init__(
        self, decoder: Decoder, attentions: Sequence[NativeAttention], kv_cache: KVCache
    ) -> None:
        self._attentions = list(dict.fromkeys(attentions))
        self._plans = (_POINTER * len(self._attentions))()
        self._config = decoder.config
        self._kept: list[object] = [decoder, kv_cache]
        """Keeps the objects alive that the structures point to."""
        self._caches = (_POINTER * len(kv_cache.layers))(
            *(layer.data_ptr() for layer in kv_cache.layers)
        )
        self._model = self._describe(decoder, attentions)
        self._nanoseconds: ctypes.Array[ctypes.c_int64] | None = None
        self._scratch = torch.empty(0, dtype=torch.bfloat16)
        self._sampled = 0, 0
        """Address and number of the hidden states of the last call's sampled rows."""
        library = load_library()
        self.sampling = NativeSampling(library)
        self._run = library.computing(
            "tm_run_decoder", "a decoder's step", DecoderModelStruct, DecoderStepStruct
        )

    def logits(self, batch: InputBatch) -> torch.Tensor:
        """Logits of the batch's sampled rows, float32 [r, v]. Writes all K and V to the cache."""
        config, num_tokens = self._config, batch.token_ids_t.shape[0]
        metadata = [one.build_metadata(batch.attention) for one in self._attentions]
        self._plans[:] = [one.plan.address for one in metadata]
        q_size = config.num_heads * config.head_size
        kv_size = config.num_kv_heads * config.head_size
        num_sampled = batch.sampled_rows_r.shape[0]

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
        # Allocated by numpy, not torch: a torch operation before the call would let the event loop
        # take the GIL and deliver a whole step first.
        logits_rv = torch.from_numpy(np.empty((num_sampled, config.num_logits), np.float32))
        step = DecoderStepStruct(
            num_tokens=num_tokens,
            token_ids=batch.token_ids_t.data_ptr(),
            positions=batch.positions_t.data_ptr(),
            slots=batch.attention.slot_mapping_t.data_ptr(),
            plans=self._plans,
            kv_caches=self._caches,
            hidden=hidden,
            normed=normed,
            qkv=qkv,
            attended=attended,
            inner=inner,
            num_sampled=num_sampled,
            sampled_rows=batch.sampled_rows_r.data_ptr(),
            sampled=sampled,
            logits=logits_rv.data_ptr(),
            nanoseconds=None if self._nanoseconds is None else ctypes.addressof(self._nanoseconds),
        )
        self._run(ctypes.byref(self._model), ctypes.byref(step))
        self._sampled = sampled, num_sampled
        cap = config.logits_soft_cap
        return logits_rv if cap is None else logits_rv.div_(cap).tanh_().mul_(cap)

    def hidden_states(self) -> torch.Tensor:
        """Hidden states after the last norm of the rows of the last `logits`, bfloat16 [r, e].

        The next call overwrites them.
        """
        (address, num_rows), size = self._sampled, self._config.hidden_size
        begin = (address - self._scratch.data_ptr()) // self._scratch.itemsize
        return self._scratch[begin : begin + num_rows * size].view(num_rows, size)

    def _take_scratch(self, sizes: Sequence[int]) -> list[int]:
        """Addresses of bfloat16 buffers of these sizes. The next call gets the same memory."""
        ends = list(accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes))
        if ends[-1] > self._scratch.shape[0]:
            self._scratch = torch.empty(ends[-1], dtype=torch.bfloat16)
        first = self._scratch.data_ptr()
        return [first + 2 * start for start in (0, *ends[:-1])]

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

    def _describe(
        self, decoder: Decoder, attentions: Sequence[NativeAttention]
    ) -> DecoderModelStruct:
        config = decoder.config
        tables = [
            (self._floats(table.cos_pc), self._floats(table.sin_pc))
            for table in decoder.rotary_tables
        ]
        layers = (DecoderLayerStruct * len(decoder.layers))(
            *(
                self._describe_layer(layer, tables, self._attentions.index(attention))
                for layer, attention in zip(decoder.layers, attentions, strict=True)
            )
        )
        return DecoderModelStruct(
            spec=attentions[0].struct,
            num_layers=len(decoder.layers),
            layers=layers,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            embedding=decoder.embedding_ve.data_ptr(),
            norm=self._floats(decoder.norm.weight),
            head=self._packed(decoder.lm_head)[0],
            eps=config.rms_norm_eps,
            float32_norms=config.float32_norms,
            rotary_size=config.rotary_size or config.head_size,
            embedding_scale=decoder.embedding_scale,
        )

    def _describe_layer(
        self, layer: DecoderLayer, tables: Sequence[tuple[int, int]], plan: int
    ) -> DecoderLayerStruct:
        struct = DecoderLayerStruct(
            input_norm=self._norm(layer.input_norm),
            attention_output_norm=self._norm(layer.attention_output_norm),
            post_attention_norm=self._norm(layer.post_attention_norm),
            feed_forward_output_norm=self._norm(layer.feed_forward_output_norm),
            plan=plan,
        )
        if layer.rotary_table is not None:
            struct.cos, struct.sin = tables[layer.rotary_table]
        if layer.qk_norm is not None:
            struct.q_norm = self._floats(layer.qk_norm.weight[0])
            struct.k_norm = self._floats(layer.qk_norm.weight[self._config.num_heads])
        struct.qkv, struct.qkv_bias = self._packed(layer.qkv)
        struct.attention_output, struct.attention_output_bias = self._packed(layer.attention_output)
        assert isinstance(layer.feed_forward, GatedNetwork), "experts are not among _FEATURES"
        struct.gate_up, struct.gate_up_bias = self._packed(layer.feed_forward.gate_up)
        struct.down, struct.down_bias = self._packed(layer.feed_forward.down)
        return struct

    def _packed(self, linear: Projection) -> tuple[object, int | None]:
        """Pointer to a product's weights, and address of its bias."""
        assert isinstance(linear, NativeLinear)
        bias = None if linear.bias is None else linear.bias.data_ptr()
        return ctypes.pointer(linear.packed.struct), bias

    def _norm(self, norm: RMSNorm | None) -> int | None:
        return None if norm is None else self._floats(norm.weight)

    def _floats(self, tensor: torch.Tensor) -> int:
        """Address of a float32 copy of the tensor, which lives as long as this object."""
        kept = tensor.float().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()
