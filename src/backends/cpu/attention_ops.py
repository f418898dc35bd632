"""Signatures of the native library's attention functions.

The functions take addresses of tensors, which the caller must keep alive. Shapes are not checked.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable

from .native.library import Library, Status
from .native.structures import (
    AttentionBatchStruct,
    AttentionCallStruct,
    AttentionSpecStruct,
    RotateAndWriteCallStruct,
)


class AttentionPlan:
    """The division of one step's work among threads. Computed once, used by every layer."""

    def __init__(self, ops: AttentionOps) -> None:
        """Allocate an empty plan. Raises MemoryError."""
        address = ops.new_plan()
        if address is None:
            raise MemoryError("not enough memory for an attention plan")
        self.address: int = address
        weakref.finalize(self, ops.free_plan, address)


class AttentionOps:
    """The library's attention functions. Functions that compute run on all threads until done."""

    def __init__(self, library: Library) -> None:
        pointer = ctypes.POINTER
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
        self.write_and_attend = library.computing(
            "tm_write_and_attend",
            "attention",
            RotateAndWriteCallStruct,
            ctypes.c_int64,
            AttentionCallStruct,
        )

    def plan(self, spec: AttentionSpecStruct, batch: AttentionBatchStruct) -> AttentionPlan:
        """Divide a step's work among the threads.

        The batch's arrays must live as long as the plan is used. Raises MemoryError.
        """
        plan = AttentionPlan(self)
        status = self._fill_plan(plan.address, ctypes.byref(spec), ctypes.byref(batch))
        Status.check(status, f"the attention plan of {batch.num_seqs} sequences")
        return plan
