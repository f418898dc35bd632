"""The metrics of several engines as one text, with the engine as a label of each sample."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .counters import Family, parse

_OWN = re.compile(r'\bengine="[^"]*",?')
"""The label as an engine writes it: always the same, because an engine does not know the others."""


def join_metrics(texts: Mapping[str, bytes]) -> bytes:
    """The metrics of engines by their names, which become the label `engine`, as in vLLM.

    Without the label, samples of different engines would be the same series. The sum over the label
    is the value of the whole server.
    """
    families: dict[str, Family] = {}
    for engine, text in texts.items():
        for name, found in parse(text).items():
            family = families.setdefault(name, Family(head=found.head))
            for key, value in found.samples.items():
                family.samples[_labelled(key, engine)] = value
    lines = [line for family in families.values() for line in _lines(family)]
    return "".join(line + "\n" for line in lines).encode()


def _labelled(key: str, engine: str) -> str:
    name, _, labels = key.partition("{")
    others = _OWN.sub("", labels).strip(",} ")
    return f'{name}{{engine="{engine}"' + (f",{others}}}" if others else "}")


def _lines(family: Family) -> list[str]:
    return [*family.head, *(f"{key} {value}" for key, value in family.samples.items())]
