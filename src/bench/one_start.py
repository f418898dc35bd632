"""One start of an engine, for a process of its own: `python -m tokenmill.bench.one_start`.

The process reads an Order from standard input, and writes a Start as the last line of its output.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from dataclasses import dataclass, field

import msgspec

from ..core.config import EngineConfig
from ..core.errors import TokenmillError

PROCESS, IMPORTS, OTHER = "starting the process", "importing torch", "other"
COMPILING = ("compiling", "building", "capturing")
"""Beginnings of the names of stages whose time is the compilation time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One start of an engine or a server."""

    config: EngineConfig
    begun: float
    """When the process was started, on the clock `time.monotonic`, which all processes share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The times of one start, in seconds."""

    total: float
    """From the start of the process until the engine takes requests."""
    phases: dict[str, float]
    """Parts of `total`, in their order."""

    @property
    def compilation(self) -> float:
        """Seconds in which something was compiled or captured."""
        return sum(seconds for name, seconds in self.phases.items() if name.startswith(COMPILING))


@dataclass(slots=True)
class Phases:
    """Measures the stages that an engine reports. Of nested stages only the outer one counts."""

    seconds: dict[str, float] = field(default_factory=dict)
    _stage: str = ""
    _begun: float = 0.0

    def note(self, stage: str, fraction: float) -> None:
        """The engine's progress: a stage, and the fraction of it that is done."""
        now = time.monotonic()
        if not self._stage and fraction < 1:
            self._stage, self._begun = stage, now
        elif stage == self._stage and fraction >= 1:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._begun
            self._stage = ""


async def measure(order: Order) -> Start:
    """Start an engine. Raises TokenmillError."""
    phases = Phases({PROCESS: time.monotonic() - order.begun})
    phases.note(IMPORTS, 0.0)
    importlib.import_module("torch")
    phases.note(IMPORTS, 1.0)
    from ..assembly import build_engine

    async with build_engine(order.config, phases.note):
        total = time.monotonic() - order.begun
    other = max(total - sum(phases.seconds.values()), 0.0)
    return Start(total=total, phases={**phases.seconds, OTHER: other})


def main() -> int:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    try:
        start = asyncio.run(measure(order))
    except TokenmillError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(msgspec.json.encode(start).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
