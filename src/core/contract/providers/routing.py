"""The contract of routers, which choose the replica that computes a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ...requests.request_options import RequestOptions
from ..client import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """An engine process that serves."""

    index: int
    """The same as the label `engine` in metrics. A restarted replica has the same index."""
    num_requests: int
    """Number of requests that it has now: running, waiting, or sent to it and not accepted yet."""
    num_blocks: int
    """KV blocks on its device."""
    load: Load
    """Its last report. It reports after each step, and at least four times a second."""


class RoutedRequest(Protocol):
    """A request that has passed all checks and goes to a replica next."""

    @property
    def prompt_token_ids(self) -> tuple[int, ...]: ...
    @property
    def block_size(self) -> int:
        """Tokens per KV block."""
        ...

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """One hash per full block of the prompt, over this block and all blocks before it.

        Prompts with a common beginning have the same first hashes, and can share these KV blocks in
        an engine. Hashes are computed at the first use, for the first 2,048 blocks. Empty without
        prefix caching.
        """
        ...

    @property
    def options(self) -> RequestOptions:
        """The sender, and the options that it gave."""
        ...


class Router(Protocol):
    """Chooses a replica for each request. It runs in the server's process, on its event loop."""

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> int:
        """The `index` of the replica that gets the request.

        Called once per prompt, and again if that replica is lost. `replicas` are the ones that
        serve, in order of their index; there is at least one. If this method raises or returns any
        other value, the replica with the fewest requests gets the request.
        """
        ...

    def forget(self, index: int) -> None:
        """Called when a replica is lost, with its KV cache and its requests."""
        ...


def least_loaded(replicas: Sequence[ReplicaView]) -> int:
    """The index of the replica with the fewest requests; the lowest index of several."""
    return min(replicas, key=lambda replica: replica.num_requests).index
