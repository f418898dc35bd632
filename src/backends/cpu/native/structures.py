"""Every structure that Python shares with the native library.

Each one has the name and the fields of its C++ counterpart. handshake.py compares the two.
"""

from __future__ import annotations

import ctypes

import numpy as np

_POINTER = ctypes.c_void_p
_INT64 = ctypes.c_int64
_INT32 = ctypes.c_int32
_FLOAT = ctypes.c_float


class PackedLinearStruct(ctypes.Structure):
    """`PackedLinear` of csrc/linear/linear.h."""

    _fields_ = (
        ("data", _POINTER),
        ("n", _INT64),
        ("k", _INT64),
        ("layout", _INT32),
        ("gate_up", _INT32),
        ("activation", _INT32),
        ("input_precision", _INT32),
        ("next", _POINTER),
    )


_PACKED = ctypes.POINTER(PackedLinearStruct)


class LinearCallStruct(ctypes.Structure):
    """`LinearCall` of csrc/linear/linear.h."""

    _fields_ = (
        ("weights", _PACKED),
        ("x", _POINTER),
        ("x_stride", _INT64),
        ("rows", _INT64),
        ("bias", _POINTER),
        ("out", _POINTER),
        ("out_stride", _INT64),
        ("out_type", _INT32),
        ("add_to_out", _INT32),
    )


class WeightRowsStruct(ctypes.Structure):
    """`WeightRows` of csrc/linear/packed/packing.h."""

    _fields_ = (
        ("rows", _POINTER),
        ("up_rows", _POINTER),
        ("row_bytes", _INT64),
        ("source", _INT32),
    )


class EmbeddingStruct(ctypes.Structure):
    """`Embedding` of csrc/elementwise/elementwise.h."""

    _fields_ = (
        ("table", _POINTER),
        ("packed", _PACKED),
    )


class AttentionSpecStruct(ctypes.Structure):
    """`AttentionSpec` of csrc/attention/attention.h."""

    _fields_ = (
        ("num_heads", _INT32),
        ("num_kv_heads", _INT32),
        ("head_size", _INT32),
        ("block_size", _INT32),
        ("element", _INT32),
        ("sliding_window", _INT32),
        ("scale", _FLOAT),
        ("logits_soft_cap", _FLOAT),
    )


class AttentionBatchStruct(ctypes.Structure):
    """`AttentionBatch` of csrc/attention/attention.h."""

    _fields_ = (
        ("num_seqs", _INT64),
        ("query_start_loc", _POINTER),
        ("seq_lens", _POINTER),
        ("block_tables", _POINTER),
        ("block_tables_stride", _INT64),
        ("last_keys", _POINTER),
    )


class AttentionCallStruct(ctypes.Structure):
    """`AttentionCall` of csrc/attention/attention.h."""

    _fields_ = (
        ("plan", _POINTER),
        ("q", _POINTER),
        ("q_stride", _INT64),
        ("kv_cache", _POINTER),
        ("out", _POINTER),
        ("out_stride", _INT64),
        ("sinks", _POINTER),
    )


class RotateAndWriteCallStruct(ctypes.Structure):
    """`RotateAndWriteCall` of csrc/elementwise/elementwise.h."""

    _fields_ = (
        ("spec", AttentionSpecStruct),
        ("q", _POINTER),
        ("q_stride", _INT64),
        ("k", _POINTER),
        ("k_stride", _INT64),
        ("v", _POINTER),
        ("v_stride", _INT64),
        ("q_norm", _POINTER),
        ("k_norm", _POINTER),
        ("eps", _FLOAT),
        ("float32_norms", _INT32),
        ("rotary_size", _INT32),
        ("cos", _POINTER),
        ("sin", _POINTER),
        ("positions", _POINTER),
        ("slots", _POINTER),
        ("kv_cache", _POINTER),
    )


class ExpertStruct(ctypes.Structure):
    """`Expert` of csrc/decoder/experts.h."""

    _fields_ = (
        ("gate_up", _PACKED),
        ("gate_up_bias", _POINTER),
        ("down", _PACKED),
        ("down_bias", _POINTER),
    )


class ExpertsSpecStruct(ctypes.Structure):
    """`ExpertsSpec` of csrc/decoder/experts.h."""

    _fields_ = (
        ("num_experts", _INT64),
        ("num_active", _INT64),
        ("intermediate_size", _INT64),
        ("normalizes_shares", _INT32),
        ("gate_limit", _FLOAT),
        ("gate_alpha", _FLOAT),
        ("is_interleaved", _INT32),
    )


class RanksStruct(ctypes.Structure):
    """`Ranks` of csrc/ranks/ranks.h."""

    _fields_ = (
        ("rank", _INT32),
        ("size", _INT32),
        ("memory", _POINTER),
        ("slot_floats", _INT64),
    )


class DecoderLayerStruct(ctypes.Structure):
    """`DecoderLayer` of csrc/decoder/decoder.h."""

    _fields_ = (
        ("input_norm", _POINTER),
        ("attention_output_norm", _POINTER),
        ("post_attention_norm", _POINTER),
        ("feed_forward_output_norm", _POINTER),
        ("q_norm", _POINTER),
        ("k_norm", _POINTER),
        ("whole_q_norm", _POINTER),
        ("whole_k_norm", _POINTER),
        ("cos", _POINTER),
        ("sin", _POINTER),
        ("sinks", _POINTER),
        ("plan", _INT64),
        ("qkv", _PACKED),
        ("qkv_bias", _POINTER),
        ("attention_output", _PACKED),
        ("attention_output_bias", _POINTER),
        ("gate_up", _PACKED),
        ("gate_up_bias", _POINTER),
        ("down", _PACKED),
        ("down_bias", _POINTER),
        ("experts", ctypes.POINTER(ExpertStruct)),
        ("router", _PACKED),
        ("router_bias", _POINTER),
    )


class DecoderModelStruct(ctypes.Structure):
    """`DecoderModel` of csrc/decoder/decoder.h."""

    _fields_ = (
        ("spec", AttentionSpecStruct),
        ("experts", ExpertsSpecStruct),
        ("num_layers", _INT64),
        ("layers", ctypes.POINTER(DecoderLayerStruct)),
        ("hidden_size", _INT64),
        ("intermediate_size", _INT64),
        ("embedding", EmbeddingStruct),
        ("norm", _POINTER),
        ("head", _PACKED),
        ("eps", _FLOAT),
        ("float32_norms", _INT32),
        ("rotary_size", _INT32),
        ("embedding_scale", _FLOAT),
        ("ranks", ctypes.POINTER(RanksStruct)),
        ("first_logits", ctypes.POINTER(_INT64)),
        ("whole_q_size", _INT64),
        ("whole_k_size", _INT64),
    )


class DecoderStepStruct(ctypes.Structure):
    """`DecoderStep` of csrc/decoder/decoder.h."""

    _fields_ = (
        ("num_tokens", _INT64),
        ("token_ids", _POINTER),
        ("positions", _POINTER),
        ("slots", ctypes.POINTER(_POINTER)),
        ("plans", ctypes.POINTER(_POINTER)),
        ("kv_caches", ctypes.POINTER(_POINTER)),
        ("hidden", _POINTER),
        ("normed", _POINTER),
        ("qkv", _POINTER),
        ("attended", _POINTER),
        ("inner", _POINTER),
        ("num_sampled", _INT64),
        ("sampled_rows", _POINTER),
        ("sampled", _POINTER),
        ("logits", _POINTER),
        ("nanoseconds", _POINTER),
        ("expert_tokens", _POINTER),
        ("marks", _POINTER),
    )


class DraftHeadModelStruct(ctypes.Structure):
    """`DraftHeadModel` of csrc/decoder/draft_head.h."""

    _fields_ = (
        ("hidden_size", _INT64),
        ("intermediate_size", _INT64),
        ("embedding", EmbeddingStruct),
        ("ones", _POINTER),
        ("norm", _POINTER),
        ("fc", _PACKED),
        ("gate_up", _PACKED),
        ("down", _PACKED),
        ("head", _PACKED),
        ("eps", _FLOAT),
    )


class DraftHeadStepStruct(ctypes.Structure):
    """`DraftHeadStep` of csrc/decoder/draft_head.h."""

    _fields_ = (
        ("num_rows", _INT64),
        ("token_ids", _POINTER),
        ("state", _POINTER),
        ("both", _POINTER),
        ("inner", _POINTER),
        ("normed", _POINTER),
        ("logits", _POINTER),
    )


class LogitsCallStruct(ctypes.Structure):
    """`LogitsCall` of csrc/sampling/logits.h."""

    _fields_ = (
        ("logits", _POINTER),
        ("size", _INT64),
        ("best", _POINTER),
        ("is_finite", _POINTER),
    )


class MaskCallStruct(ctypes.Structure):
    """`MaskCall` of csrc/sampling/logits.h."""

    _fields_ = (
        ("logits", _POINTER),
        ("size", _INT64),
        ("rows", _POINTER),
        ("masks", _POINTER),
        ("words", _INT64),
    )


class LogitsRowsStruct(ctypes.Structure):
    """`LogitsRows` of csrc/sampling/sampling.h."""

    _fields_ = (
        ("logits", _POINTER),
        ("size", _INT64),
        ("best", _POINTER),
        ("positions", _POINTER),
        ("drawn", _POINTER),
        ("token_ids", _POINTER),
    )


class DrawCallStruct(ctypes.Structure):
    """`DrawCall` of csrc/sampling/sampling.h."""

    _fields_ = (
        ("rows", LogitsRowsStruct),
        ("count", _INT64),
        ("probs", _POINTER),
        ("probs_size", _INT64),
        ("places", _POINTER),
    )


class TrialCallStruct(ctypes.Structure):
    """`TrialCall` of csrc/sampling/sampling.h."""

    _fields_ = (
        ("rows", LogitsRowsStruct),
        ("num_sequences", _INT64),
        ("ends", _POINTER),
        ("drafts", _POINTER),
        ("q", _POINTER),
        ("accept_purpose", _INT64),
    )


DRAWN_ROW = np.dtype(
    [
        ("row", np.int64),
        ("seed", np.int64),
        ("top_p", np.float64),
        ("top_k", np.int64),
        ("temperature", np.float32),
        ("min_p", np.float32),
    ],
    align=True,
)
"""`DrawnRow` of csrc/sampling/sampling.h."""

STRUCTURES = tuple(
    one
    for one in list(vars().values())
    if isinstance(one, type) and issubclass(one, ctypes.Structure)
)
"""All structures except DRAWN_ROW."""
