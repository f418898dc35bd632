"""Attention by the native library: its structures and signatures.

Addresses are of tensors that the caller keeps alive; nothing here checks shapes.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable

from .library import Library, Status


class AttentionSpecStruct(ctypes.Structure):
    """`AttentionSpec` of csrc/attention.h."""

    _fields_ = (
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_size", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("element", ctypes.c_int32),
        ("sliding_window", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("logits_soft_cap", ctypes.c_float),
    )


class AttentionBatchStruct(ctypes.Structure):
    """`AttentionBatch` of csrc/attention.h."""

    _fields_ = (
        ("num_seqs", ctypes.c_int64),
        ("query_start_loc", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("block_tables_stride", ctypes.c_int64),
    )


class AttentionCallStruct(ctypes.Structure):
    """`AttentionCall` of csrc/attention.h."""

    _fields_ = (
        ("plan", ctypes.c_void_p),
        ("q", ctypes.c_void_p),
        ("q_stride", ctypes.c_int64),
        ("kv_cache", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_stride", ctypes.c_int64),
    )


class RotateAndWriteCallStruct(ctypes.Structure):
    """`RotateAndWriteCall` of csrc/elementwise.h."""

    _fields_ = (
        ("spec", AttentionSpecStruct),
        ("q", ctypes.c_void_p),
        ("q_stride", ctypes.c_int64),
        ("k", ctypes.c_void_p),
        ("k_stride", ctypes.c_int64),
        ("v", ctypes.c_void_p),
        ("v_stride", ctypes.c_int64),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("eps", ctypes.c_float),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("kv_cache", ctypes.c_void_p),
    )


class AttentionPlan:
    """One step's division of work, computed once and used by every layer."""

    def __init__(self, ops: AttentionOps) -> None:
        """Raises MemoryError."""
        address = ops.new_plan()
        if address is None:
            raise MemoryError("there is no memory for an attention plan")
        self.address: int = address
        weakref.finalize(self, ops.free_plan, address)


class AttentionOps:
    """The functions; each runs on all threads and returns when they are done."""

    def __init__(self, library: Library) -> None:
        pointer, int64 = ctypes.POINTER, ctypes.c_int64
        brief = library.brief_function
        self.new_plan: Callable[[], int | None] = brief("tm_attention_plan_new", ctypes.c_void_p)
        self.free_plan: Callable[[int], None] = brief(
            "tm_attention_plan_free", None, ctypes.c_void_p
        )
        self._fill_plan: Callable[..., int] = brief(
            "tm_attention_plan",
            ctypes.c_int,
            ctypes.c_void_p,
            pointer(AttentionSpecStruct),
            pointer(AttentionBatchStruct),
        )
        self.write_and_attend: Callable[..., None] = library.function(
            "tm_write_and_attend",
            None,
            pointer(RotateAndWriteCallStruct),
            int64,
            pointer(AttentionCallStruct),
        )

    def plan(self, spec: AttentionSpecStruct, batch: AttentionBatchStruct) -> AttentionPlan:
        """Divide a step's work among the threads. The batch's arrays must live as long as the plan
        is used. Raises MemoryError."""
        plan = AttentionPlan(self)
        status = self._fill_plan(plan.address, ctypes.byref(spec), ctypes.byref(batch))
        Status.check(status, f"the attention plan of {batch.num_seqs} sequences")
        return plan
