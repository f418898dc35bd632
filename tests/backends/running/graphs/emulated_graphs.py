"""Graphs on a CPU: the calls of torch's operations are recorded, and made again on the same memory.

As on a GPU, a replay runs no Python of the model, reads nothing but the memory of the capture, and
an operation that must wait for the device cannot be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique", "bincount", "equal")


class _Recording(TorchDispatchMode):
    """Keeps each call with its result."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in WAITS:
            raise RuntimeError(f"{func} waits for the device")
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, old in self.calls:
            if func.is_view:
                continue
            new = func(*args, **kwargs)
            for target, value in zip(tree_leaves(old), tree_leaves(new), strict=True):
                if isinstance(target, torch.Tensor) and target.data_ptr() != value.data_ptr():
                    target.copy_(value)


class EmulatedCapture:
    """See Capture. Counts the replays."""

    def __init__(self) -> None:
        self.num_replays = 0

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        run()
        recording = _Recording()
        with recording:
            run()

        def replay() -> None:
            self.num_replays += 1
            recording.replay()

        return replay
