"""One replica of a fleet: an engine in virtual time, and its state as its server sees it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ...core.contract.providers.routing import ReplicaView
from ...core.shell.checking import CheckedRequest
from ...core.supervised.link import IDLE
from ..virtual_engine import Jump, OpenStep, VirtualEngine
from ..workload import PlannedRequest


class State(Enum):
    """The state of a replica."""

    STARTING = auto()
    SERVING = auto()
    DRAINING = auto()
    """It finishes its requests and gets no new ones."""
    GONE = auto()


@dataclass(slots=True, eq=False)
class Client:
    """A request, as its sender sees it."""

    number: int
    planned: PlannedRequest
    checked: CheckedRequest
    num_engines: int = 0
    """Number of replicas that accepted it, one after the other."""
    num_tokens: int = 0
    first_token: float | None = None
    last_token: float | None = None


class Replica:
    """A process with an engine. A restarted replica is another object with the same index."""

    def __init__(self, index: int, engine: VirtualEngine, since: float) -> None:
        """`since`: the time from which it costs, in seconds."""
        self.index = index
        self.engine = engine
        self.since = since
        self.state = State.STARTING
        self.is_alive = True
        """False from its death on. Its state follows when that is detected."""
        self.open: dict[str, Client] = {}
        """The requests that were sent to it and have not ended, by engine id."""
        self.step: OpenStep | Jump | None = None
        self.turn_at: float | None = None
        """When its scheduler is called next, if no step is open."""
        self.load = IDLE

    def report(self) -> None:
        """Take over the engine's load, which a server gets after each step."""
        self.load = self.engine.core.load()

    def view(self) -> ReplicaView:
        """The router's view, as `core.supervised.routing.view_of` makes it."""
        return ReplicaView(
            index=self.index,
            num_requests=len(self.open),
            num_blocks=self.engine.info.num_blocks,
            load=self.load,
        )
