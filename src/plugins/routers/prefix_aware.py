"""Prefix aware: the replica with the lowest cost, by its prefix cache and its load.

The cost of a replica is the number of prompt tokens that it would have to compute, plus a constant
for each of its requests, as in NVIDIA Dynamo's router.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from ...plugin import Registry, ReplicaView, RoutedRequest, hookimpl, kinds

TOKENMILL_API = (1, 1)
MAX_BLOCKS = 1 << 16
"""Maximum number of blocks to remember per replica; they take 10 MB. A prefix that was not used for
this many blocks is seldom needed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixAwareOptions:
    """Options of the prefix-aware router."""

    tokens_per_request: Annotated[int, Meta(ge=0)] = field(
        default=128,
        metadata={
            "help": "number of prompt tokens that cost as much as one request on a replica; "
            "lower: more even load; higher: more prefix hits"
        },
    )


class PrefixAware:
    """Remembers which prompt blocks each replica got, up to the size of its KV cache."""

    def __init__(self, options: PrefixAwareOptions) -> None:
        self._tokens_per_request = options.tokens_per_request
        self._sent: dict[int, OrderedDict[bytes, None]] = {}

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> int:
        hashes = request.block_hashes
        chosen = min(replicas, key=lambda replica: self._cost(request, hashes, replica))
        self._remember(hashes, chosen)
        return chosen.index

    def forget(self, index: int) -> None:
        self._sent.pop(index, None)

    def _cost(self, request: RoutedRequest, hashes: Sequence[bytes], replica: ReplicaView) -> int:
        num_cached = self._num_known(hashes, replica) * request.block_size
        num_new = len(request.prompt_token_ids) - num_cached
        return num_new + self._tokens_per_request * replica.num_requests

    def _num_known(self, hashes: Sequence[bytes], replica: ReplicaView) -> int:
        sent = self._sent.get(replica.index, ())
        return next((i for i, one in enumerate(hashes) if one not in sent), len(hashes))

    def _remember(self, hashes: Sequence[bytes], replica: ReplicaView) -> None:
        sent = self._sent.setdefault(replica.index, OrderedDict())
        for one in reversed(hashes):  # the beginning of a prompt is forgotten last
            sent[one] = None
            sent.move_to_end(one)
        while len(sent) > min(replica.num_blocks, MAX_BLOCKS):
            sent.popitem(last=False)


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.ROUTER, "prefix-aware", PrefixAware, options=PrefixAwareOptions)
