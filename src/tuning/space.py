"""The settings that tuning varies, and their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.config import EngineConfig
from ..core.kinds import PREEMPTION_MODE, SCHEDULER

Settings = Mapping[str, Any]
"""Options of EngineConfig that differ from the given ones, in the order of the space."""

SIZES: Mapping[str, Sequence[int]] = {
    "max_num_seqs": (4, 8, 16, 32, 64, 128, 256),
    "max_num_batched_tokens": (64, 128, 256, 512, 1024, 2048, 4096),
    "long_prefill_token_threshold": (0, 64, 128, 256, 512),
    "block_size": (8, 16, 32),
}
"""Values that are tried, ascending."""


@dataclass(frozen=True, slots=True)
class Space:
    """The values of each setting that is varied. The first value of each is the given one."""

    values: Mapping[str, Sequence[Any]]

    @property
    def size(self) -> int:
        return math.prod(map(len, self.values.values()))

    def combinations(self) -> Iterator[tuple[int, ...]]:
        """The indexes of all combinations; the given values first."""
        return itertools.product(*(range(len(values)) for values in self.values.values()))

    def settings(self, indexes: Mapping[str, int]) -> Settings:
        """The settings with these values, without those that stay as they are given."""
        return {key: self.values[key][index] for key, index in indexes.items() if index}


def default_space(
    base: EngineConfig, given: Iterable[str], policies: Mapping[str, Sequence[str]]
) -> Space:
    """All settings that `given` does not fix. `policies` has the known names by kind."""
    known: dict[str, Sequence[Any]] = dict(SIZES)
    for kind in (SCHEDULER.name, PREEMPTION_MODE.name):
        known[kind] = policies.get(kind, ())
    fixed = set(given)
    if "enable_chunked_prefill" in fixed:
        fixed.add(SCHEDULER.name)
    return make_space(base, {key: known[key] for key in known if key not in fixed})


def make_space(base: EngineConfig, values: Mapping[str, Sequence[Any]]) -> Space:
    """A space of the settings in `values`: their values in `base` first, then these."""
    return Space(
        {
            key: (getattr(base, key), *(v for v in wanted if v != getattr(base, key)))
            for key, wanted in values.items()
        }
    )
