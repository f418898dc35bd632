"""One run of a fleet: requests, replicas and events in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ...core.config import EngineConfig
from ...core.errors import InvalidRequestError
from ...testing.quiet_logs import quiet_logs
from ..step_time import StepTimes
from ..virtual_engine import VirtualEngine, Watch
from ..workload import PlannedRequest
from .clock import Clock
from .driving import Driver
from .operating import Operator
from .outcome import FleetOutcome, summarize
from .replica import Client, Replica
from .sending import Sender
from .settings import FleetSettings
from .tally import NUM_INTERVALS, Tally


class FleetRun:
    """Serves requests with replicas. Equal arguments give equal outcomes."""

    def __init__(
        self,
        requests: Iterable[PlannedRequest],
        duration: float,
        settings: FleetSettings,
        config: EngineConfig,
        times: StepTimes,
    ) -> None:
        """`requests`: in order of arrival, within `duration` seconds.

        Raises ConfigError or PluginError for settings that cannot work.
        """
        self.examples: dict[str, str] = {}
        """The first error message for each reason of a failure."""
        self._requests = iter(requests)
        self._duration = duration
        self._num_replicas = settings.num_replicas
        self._config = config
        self._times = times
        self._watch = Watch(self.examples)
        self._first = VirtualEngine(config, times, self._watch)
        """The engine of replica 0. It also checks requests."""
        self._made = False
        self._clock = Clock()
        self._tally = Tally(settings.limits_ms, max(duration, 1e-3) / NUM_INTERVALS)
        self._sender = Sender(config, self._tally, self.examples)
        self._driver = Driver(self._clock, self._sender, self._tally)
        self._operator = Operator(
            settings, self._make, self._clock, self._sender, self._driver, self._tally
        )

    def run(self, progress: Callable[[float], None] = lambda fraction: None) -> FleetOutcome:
        """Serve all requests. `progress` gets the fraction of the time that has passed."""
        with quiet_logs():
            self._operator.begin()
            self._serve(progress)
        end = max(self._clock.now, self._duration)
        self._operator.end(end)
        return summarize(
            self._tally,
            self._watch,
            duration=end,
            num_replicas=self._num_replicas,
            router_failures={
                f"{stats.plugin} in {stats.hook}": stats.failures
                for stats in self._sender.router.hook_stats()
                if stats.failures
            },
        )

    def _serve(self, progress: Callable[[float], None]) -> None:
        clock, tally = self._clock, self._tally
        number, coming = 0, next(self._requests, None)
        while coming is not None or tally.num_open:
            time = clock.next_time()
            # Requests that arrive when a step ends are known to the next one, as in VirtualRun.
            if coming is not None and (time is None or coming.at <= time):
                clock.now = coming.at
                self._arrive(coming, number)
                number, coming = number + 1, next(self._requests, None)
                progress(min(1.0, clock.now / self._duration) if self._duration else 1.0)
            else:
                clock.advance()
        progress(1.0)

    def _arrive(self, planned: PlannedRequest, number: int) -> None:
        self._tally.arrive(planned.at)
        try:
            checked = self._first.check(planned)
        except InvalidRequestError as error:
            self._sender.refuse(planned, error)
            return
        self._driver.send(Client(number, planned, checked))

    def _make(self, index: int, now: float) -> Replica:
        if index == 0 and not self._made:
            self._made = True
            return Replica(index, self._first, now)
        own = replace(self._config, seed=self._config.seed + index)
        return Replica(index, VirtualEngine(own, self._times, self._watch), now)
