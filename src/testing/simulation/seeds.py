"""Runs the lives of many seeds; a failure names its seed and the command that replays it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..quiet_logs import quiet_logs
from .life import Life
from .settings import Outcome


@dataclass(slots=True, kw_only=True)
class Tally:
    """Sums of the outcomes of several lives."""

    num_seeds: int = 0
    num_requests: int = 0
    num_tokens: int = 0
    num_turns: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    num_hit_tokens: int = 0
    num_plugin_failures: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of one life."""
        self.num_seeds += 1
        for name in outcome.__slots__:
            setattr(self, name, getattr(self, name) + getattr(outcome, name))


def run_seeds(
    seeds: Sequence[int],
    *,
    progress: Callable[[int], None] = lambda done: None,
    trace: Callable[[str], None] | None = None,
) -> Tally:
    """Run the life of every seed. Raises the exception of the first failure, with a note about it.

    `progress` is called with the number of seeds done, `trace` with a line for each event. The
    engine's logs are silenced.
    """
    tally = Tally()
    with quiet_logs():
        for done, seed in enumerate(seeds, 1):
            try:
                tally.add(Life(seed, trace=trace).run())
            except Exception as error:
                error.add_note(
                    f"seed {seed} failed; replay: tokenmill simulate seeds --seed {seed} --trace"
                )
                raise
            progress(done)
    return tally
