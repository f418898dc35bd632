"""The number of threads with which torch computes, which all engines of a process share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_holders = 0
_before = 1


def count_torch_threads() -> int:
    """Number of threads that torch has while no SingleTorchThread is held."""
    with _lock:
        return _before if _holders else torch.get_num_threads()


class SingleTorchThread:
    """Leaves torch one thread as long as any of these is held.

    Native threads compute instead: between steps torch's would spin on their cores. torch knows no
    smaller scope than the process for this. The last one to be released, in whatever order, gives
    torch back the number that the first one found.
    """

    def __init__(self) -> None:
        global _holders, _before
        self._is_held = True
        with _lock:
            if _holders == 0:
                _before = torch.get_num_threads()
                torch.set_num_threads(1)
            _holders += 1

    def release(self) -> None:
        """Let go; only the first call counts."""
        global _holders
        with _lock:
            if not self._is_held:
                return
            self._is_held = False
            _holders -= 1
            if _holders == 0:
                torch.set_num_threads(_before)


@contextmanager
def all_torch_threads() -> Iterator[None]:
    """Give torch all its threads for one long computation on the calling thread, even while a
    SingleTorchThread is held. For modules of other libraries, such as transformers."""
    torch.set_num_threads(count_torch_threads())
    try:
        yield
    finally:
        with _lock:
            if _holders:
                torch.set_num_threads(1)
