"""The views of a router: a request with the hashes of its blocks, and the replicas that serve."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ..contract.providers.routing import ReplicaView
from ..engine.blocks.pool import hash_chain, hash_root
from ..interfaces import ModelInfo
from ..shell.checking import CheckedRequest
from .link import EngineLink

MAX_HASHED_BLOCKS = 2048
"""Maximum number of blocks to hash per request. It takes about 3 ms of the server's event loop."""


class Routed:
    """The RoutedRequest of a request."""

    def __init__(self, request: CheckedRequest, info: ModelInfo, *, is_hashed: bool) -> None:
        """`is_hashed`: False without prefix caching."""
        self.prompt_token_ids = request.prompt_token_ids
        self.block_size = info.block_size
        self.options = request.options
        self._root = hash_root(info.name, request.options.cache_salt or "")
        self._is_hashed = is_hashed
        self._media = request.media

    @cached_property
    def block_hashes(self) -> Sequence[bytes]:
        most = MAX_HASHED_BLOCKS * self.block_size if self._is_hashed else 0
        return hash_chain(self._root, self.prompt_token_ids[:most], self.block_size, self._media)


def view_of(index: int, link: EngineLink) -> ReplicaView:
    """A router's view of a replica that serves."""
    return ReplicaView(
        index=index,
        num_requests=len(link.open_requests),
        num_blocks=link.ready.result().info.num_blocks,
        load=link.load,
    )
