"""Counters that survive the restart of their engine, in Prometheus's text format.

A counter of a new engine begins at 0. Added to the counts of the engines before it, it never
decreases, as Prometheus needs it. Gauges are only shown while their engine lives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_SUMMED = {
    "counter": ("", "_total"),
    "histogram": ("_bucket", "_count", "_sum"),
    "summary": ("_count", "_sum"),
}
"""Endings of the names of samples that only grow, by the type of their family."""


@dataclass(slots=True, kw_only=True)
class Family:
    """One metric: its lines of HELP and TYPE, and its samples by name and labels."""

    head: list[str] = field(default_factory=list)
    kind: str = "untyped"
    samples: dict[str, str] = field(default_factory=dict)

    def sums(self, name: str) -> Iterator[tuple[str, float]]:
        endings = _SUMMED.get(self.kind, ())
        names = {name + ending for ending in endings}
        for key, value in self.samples.items():
            if key.partition("{")[0] in names:
                yield key, float(value)


class SurvivingCounters:
    """Adds the counts of ended engines to those of the current one."""

    def __init__(self) -> None:
        self._ended: dict[str, Family] = {}

    def end(self, text: bytes) -> None:
        """Note the last metrics of an engine that has ended."""
        for name, family in parse(text).items():
            kept = self._ended.setdefault(name, Family(head=family.head, kind=family.kind))
            for key, value in family.sums(name):
                kept.samples[key] = repr(float(kept.samples.get(key, 0)) + value)

    def render(self, text: bytes) -> bytes:
        """The current engine's metrics with the counts of the ended ones; b"" without an engine."""
        if not self._ended:
            return text
        current = parse(text)
        lines: list[str] = []
        for name in current | self._ended:
            lines += self._merged(name, current)
        return "".join(line + "\n" for line in lines).encode()

    def _merged(self, name: str, current: Mapping[str, Family]) -> Iterator[str]:
        ended = self._ended.get(name, Family())
        family = current.get(name, ended)
        counts = dict(family.sums(name)) if name in current else {}
        samples = dict(ended.samples)
        for key, value in family.samples.items() if name in current else ():
            before = float(ended.samples.get(key, 0))
            samples[key] = repr(counts[key] + before) if key in counts and before else value
        if samples:
            yield from family.head
            for key, value in samples.items():
                yield f"{key} {value}"


def parse(text: bytes) -> dict[str, Family]:
    """The families of a text, in order. A sample without a TYPE before it is a family itself."""
    families: dict[str, Family] = {}
    name = ""
    for line in text.decode().split("\n"):  # splitlines also splits at what a label may have
        if line.startswith(("# HELP ", "# TYPE ")):
            _, what, name, rest = [*line.split(" ", 3), ""][:4]
            family = families.setdefault(name, Family())
            family.head.append(line)
            if what == "TYPE":
                family.kind = rest.strip()
        elif line and not line.startswith("#"):
            key, value = _split(line)
            own = key.partition("{")[0]
            if not (name and own.startswith(name)):
                name = own
            families.setdefault(name, Family()).samples[key] = value
    return families


def _split(line: str) -> tuple[str, str]:
    """Name with labels, and value, of a sample. A time stamp behind the value is dropped."""
    end = line.rindex("}") + 1 if "}" in line else line.index(" ")
    return line[:end], line[end:].split()[0]
