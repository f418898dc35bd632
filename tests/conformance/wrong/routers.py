"""Wrong routers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tokenmill.testing.conformance.policies import router as suite

from . import fails

router_numbers = itertools.count()
"""Makes a router differ from one server to the next."""


class TakesTurns:
    """Right: the replicas that serve take turns."""

    def __init__(self) -> None:
        self.turn = 0

    def route(self, request: Any, replicas: Sequence[Any]) -> int:
        self.turn += 1
        return int(replicas[self.turn % len(replicas)].index)

    def forget(self, index: int) -> None:
        pass


@fails(suite.check_it_chooses_a_replica_that_serves)
class SendsToTheDead(TakesTurns):
    """Takes turns over all replicas that it has ever seen."""

    def __init__(self) -> None:
        super().__init__()
        self.known: set[int] = set()

    def route(self, request: Any, replicas: Sequence[Any]) -> int:
        self.known |= {replica.index for replica in replicas}
        self.turn += 1
        return sorted(self.known)[self.turn % len(self.known)]


@fails(suite.check_it_uses_every_replica)
class AlwaysTheFirst(TakesTurns):
    def route(self, request: Any, replicas: Sequence[Any]) -> int:
        return int(replicas[0].index)


@fails(suite.check_it_survives_the_loss_of_any_replica, raises=KeyError)
class KnowsItsReplicas(TakesTurns):
    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[int, int] = {}

    def route(self, request: Any, replicas: Sequence[Any]) -> int:
        chosen = super().route(request, replicas)
        self.sent[chosen] = self.sent.get(chosen, 0) + 1
        return chosen

    def forget(self, index: int) -> None:
        del self.sent[index]


@fails(suite.check_its_memory_has_a_limit)
class RemembersAllSessions(TakesTurns):
    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, tuple[int, int]] = {}

    def route(self, request: Any, replicas: Sequence[Any]) -> int:
        chosen = super().route(request, replicas)
        if request.options.session_id is not None:
            self.places[request.options.session_id] = chosen, len(self.places)
        return chosen


@fails(suite.check_it_is_deterministic)
class DiffersFromServerToServer(TakesTurns):
    def __init__(self) -> None:
        self.turn = next(router_numbers)
