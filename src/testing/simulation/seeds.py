"""Runs the lives of many seeds; a failure names its seed and the command that replays it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..quiet_logs import quiet_logs
from .life import Life
from .settings import Outcome


def run_seeds(
    seeds: Sequence[int],
    *,
    progress: Callable[[int], None] = lambda done: None,
    trace: Callable[[str], None] | None = None,
) -> Outcome:
    """Run the life of every seed, and sum the outcomes.

    Raises the exception of the first failure, with a note that names the seed.

    `progress` is called with the number of seeds done, `trace` with a line for each event. The
    engine's logs are silenced.
    """
    total = Outcome()
    with quiet_logs():
        for done, seed in enumerate(seeds, 1):
            try:
                total.add(Life(seed, trace=trace).run())
            except Exception as error:
                error.add_note(
                    f"seed {seed} failed; replay: tokenmill simulate seeds --seed {seed} --trace"
                )
                raise
            progress(done)
    return total
