"""Regions: the parts of a step that one rank computes one after the other, with their times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from struct import Struct
from typing import NamedTuple, Self

MAX_REGIONS = 256
"""Maximum number of regions of a rank in a step."""
_RECORD = Struct("<HhII")
"""Index of the name, layer, begin and end; in microseconds since the first region began."""


class Region(NamedTuple):
    """A part of a step, such as attention in one layer, with its begin and end."""

    name: str
    layer: int | None
    """The index of the layer in the whole model, from 0; None: the region belongs to no layer."""
    began: float
    ended: float
    """Both: times of the monotonic clock of the rank's machine, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """The regions of a rank in a step, in the order of time. They do not overlap.

    They are packed, because a trace has up to a million of them.
    """

    began: float = 0.0
    """The time from which `packed` counts."""
    names: tuple[str, ...] = ()
    packed: bytes = b""

    @classmethod
    def of(cls, regions: Sequence[Region]) -> Self:
        """Pack regions. If there are more than MAX_REGIONS, all regions of a layer, or of several
        consecutive layers, become one region."""
        if len(regions) > MAX_REGIONS:
            regions = _join_layers(regions)
        if not regions:
            return cls()
        start = regions[0].began
        names = tuple(dict.fromkeys([one.name for one in regions]))
        index_of = {name: index for index, name in enumerate(names)}
        records = [
            _RECORD.pack(
                index_of[one.name],
                -1 if one.layer is None else one.layer,
                int(1e6 * (one.began - start)),
                int(1e6 * (one.ended - start)),
            )
            for one in regions
        ]
        return cls(began=start, names=names, packed=b"".join(records))

    def __len__(self) -> int:
        return len(self.packed) // _RECORD.size

    def __iter__(self) -> Iterator[Region]:
        for name, layer, began, ended in _RECORD.iter_unpack(self.packed):
            times = self.began + 1e-6 * began, self.began + 1e-6 * ended
            yield Region(self.names[name], None if layer < 0 else layer, *times)


NO_REGIONS = Regions()


def _join_layers(regions: Sequence[Region]) -> list[Region]:
    """Join consecutive layers into the smallest groups that make at most MAX_REGIONS regions."""
    layers = [one.layer for one in regions if one.layer is not None]
    num_others = len(regions) - len(layers)
    first, num_layers = min(layers, default=0), len(set(layers))
    size = max(1, -(-num_layers // max(1, MAX_REGIONS - num_others)))
    found = []
    for layer, group in groupby(
        regions, lambda one: one if one.layer is None else (one.layer - first) // size
    ):
        members = list(group)
        name = members[0].name if isinstance(layer, Region) else "layer" if size == 1 else "layers"
        found.append(members[0]._replace(name=name, ended=members[-1].ended))
    return found[:MAX_REGIONS]
