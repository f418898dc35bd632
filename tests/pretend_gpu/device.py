"""A pretend GPU: tensors that say they are on cuda:0, with their numbers in main memory.

Unchanged code for GPUs runs on it. As on a GPU, an operation on tensors of two devices raises, and
so does numpy. What carries tensors between GPUs is replaced by gloo.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

MEMORY = 8 << 30
"""Bytes of the pretend GPU's memory."""
GROUP = "cpu:gloo,cuda:nccl"
GPUS = "CUDA_VISIBLE_DEVICES"
_DEVICE = torch.device("cuda", 0)


class PretendTensor(torch.Tensor):
    """A tensor on the pretend GPU; `numbers` is the tensor in main memory."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> PretendTensor:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=_DEVICE,
        )
        made.numbers = numbers
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"PretendTensor({self.numbers})"

    def tolist(self) -> Any:
        return self.numbers.tolist()

    def numpy(self, **_: Any) -> Any:  # type: ignore[override]
        raise TypeError("a tensor on a GPU is no array: copy it to the host first")

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _compute(operation, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _compute(operation, args, kwargs or {})


def install(guard: str) -> None:
    """Let this thread have the pretend GPU. `guard`: the library compiled from guard.cpp.

    Call it before tokenmill is imported.
    """
    ctypes.CDLL(guard)
    torch._C._set_only_lift_cpu_tensors(True)
    torch.inference_mode = torch.no_grad  # type: ignore[misc,assignment]
    for name, answer in {
        "_lazy_init": None,
        "is_available": True,
        "device_count": 1,
        "get_device_capability": (9, 0),
        "mem_get_info": (MEMORY, MEMORY),
        "memory_allocated": 0,
        "max_memory_allocated": 1 << 20,
        "memory_reserved": 0,
        "reset_peak_memory_stats": None,
        "synchronize": None,
        "empty_cache": None,
    }.items():
        setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    join = dist.init_process_group

    def join_by_gloo(backend: str, **options: Any) -> None:
        assert backend == GROUP
        assert "," not in os.environ[GPUS], "a rank sees the GPU of another one"
        join("gloo", **options)

    dist.init_process_group = join_by_gloo
    _Mode().__enter__()


def _compute(operation: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation, on the device where a GPU would have it."""
    inputs = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    on_gpu = [one for one in inputs if isinstance(one, PretendTensor)]
    target = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
    _refuse_two_devices(str(operation), inputs)
    host_kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    if target is not None:
        host_kwargs["device"] = torch.device("cpu")
    found = operation(*tree_map(_on_host, args), **tree_map(_on_host, host_kwargs))
    if target == "cpu" or (target is None and not on_gpu):
        return found
    same = {id(one.numbers): one for one in on_gpu}  # an operation in place returns its input
    return tree_map(lambda one: same[id(one)] if id(one) in same else _on_gpu(one), found)


def _refuse_two_devices(name: str, inputs: list[torch.Tensor]) -> None:
    """Raise as CUDA does. Copies, indices and tensors without dimensions may be on the host."""
    if name.startswith(("aten._to_copy", "aten.copy_", "aten.index", "aten._index_put")):
        return
    devices = {type(one) for one in inputs if one.dim() > 0 or isinstance(one, PretendTensor)}
    if len(devices) > 1:
        raise RuntimeError(f"{name}: tensors are on two devices")


def _on_host(value: Any) -> Any:
    return value.numbers if isinstance(value, PretendTensor) else value


def _on_gpu(value: Any) -> Any:
    is_host_tensor = isinstance(value, torch.Tensor) and not isinstance(value, PretendTensor)
    return PretendTensor(value) if is_host_tensor else value
