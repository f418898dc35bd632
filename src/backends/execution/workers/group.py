"""The group of all ranks, over which torch.distributed sends partial sums."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import IO

import psutil
import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]
    FileStore,
    PrefixStore,
    Store,
    TCPStore,
)

from ....core.errors import ConfigError, DeviceError
from ....core.processes.channels.shared_memory import unnamed_file
from .messages import Rendezvous

LOOPBACK = "127.0.0.1"
DISCARD_PORT = 9
JOIN_TIMEOUT = timedelta(minutes=5)
"""Time in which all ranks must join. They join before they read their weights."""
WAIT_TIMEOUT = timedelta(hours=1)
"""Time that a rank waits for another one, which may still read its weights from a slow disk. The
engine notices a lost rank much earlier."""
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""The libraries that carry tensors between ranks, by the type of the ranks' devices. Ranks with
GPUs also have tensors in main memory."""


def open_private_rendezvous() -> tuple[IO[bytes], Rendezvous]:
    """Open a file through which ranks of this machine find each other. Only processes of this user
    can open it. With NCCL it must live as long as the ranks, otherwise until all have joined.
    """
    if sys.platform == "linux":  # nothing is left on disk, even if this process is killed
        file = unnamed_file()
        return file, Rendezvous(LOOPBACK, f"/proc/{os.getpid()}/fd/{file.fileno()}")
    named = tempfile.NamedTemporaryFile(prefix="tokenmill-ranks-")  # noqa: SIM115 - see above
    return named, Rendezvous(LOOPBACK, named.name)


def open_rendezvous(host: str) -> tuple[TCPStore, Rendezvous]:
    """Open the store through which ranks of several machines find each other, on a free port of
    this address only.

    It must live until all ranks have joined.
    """
    listener = socket.create_server((host, 0))
    port: int = listener.getsockname()[1]
    store = TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # torch itself would listen on all addresses
    )
    return store, Rendezvous(host, port=port, token=secrets.token_hex(16))


def join_group(
    rendezvous: Rendezvous, rank: int, size: int, backends: str = BACKENDS["cpu"]
) -> None:
    """Join the default group of this process, on the interface that reaches the rendezvous.
    `backends`: of BACKENDS.

    Raises ConfigError if this machine has no such interface.
    """
    interface = _find_interface(rendezvous)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    store = _connect(rendezvous)
    store.set_timeout(JOIN_TIMEOUT)
    dist.init_process_group(backends, store=store, rank=rank, world_size=size, timeout=WAIT_TIMEOUT)
    store.set_timeout(WAIT_TIMEOUT)  # NCCL connects ranks through the store, after they have loaded


def _connect(rendezvous: Rendezvous) -> Store:
    if rendezvous.file:
        return FileStore(rendezvous.file)
    store = TCPStore(rendezvous.host, rendezvous.port, is_master=False, timeout=JOIN_TIMEOUT)
    return PrefixStore(rendezvous.token, store)


class GroupRanks:
    """Adds up partial sums by torch.distributed: of CPUs by gloo, over sockets, and of GPUs by
    NCCL. See models/tensor_parallel.py."""

    def __init__(self, rank: int, size: int) -> None:
        """Called by all ranks at the same time: `size` consecutive ones add up their sums."""
        groups = [
            dist.new_group(list(range(first, first + size)), timeout=WAIT_TIMEOUT)
            for first in range(0, dist.get_world_size(), size)
        ]
        self._group = groups[rank // size]

    def sum(self, part: torch.Tensor) -> None:
        with connection():
            dist.all_reduce(part, group=self._group)

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        """See Ranks. The ranks may be on several machines, so each keeps its own copy."""
        return tensor


@contextmanager
def connection() -> Iterator[None]:
    """Surrounds messages to other ranks. Raises DeviceError if a connection is lost: ranks cannot
    join again, so all of them must be restarted."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise DeviceError(f"the connection to other ranks is lost: {reason}") from error


def all_agree(answer: bool) -> bool:
    """Whether this answer and the answers of all other ranks are yes."""
    common = torch.tensor(int(answer))
    dist.all_reduce(common, dist.ReduceOp.MIN)
    return bool(common)


def _find_interface(rendezvous: Rendezvous) -> str:
    """Name of the network interface from which this machine reaches the rendezvous."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((rendezvous.host, DISCARD_PORT))  # sends nothing
        except OSError as error:
            raise ConfigError(
                f"no network interface reaches {rendezvous.host}, where ranks find each other: "
                f"{error.strerror}"
            ) from error
        address = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if address in (one.address for one in addresses):
            return name
    raise ConfigError(f"no network interface has the address {address} of this machine")
