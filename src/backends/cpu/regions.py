"""The regions of a native call. The library records the time at which each region ends."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from ...core.regions import Region
from ..weights.config.model_config import ModelConfig

PER_LAYER = ("q, k, v", "attention", "attention output", "feed-forward")
"""The regions of a layer. Each begins with the norm before it, if there is one."""


class CallMarks:
    """Memory for the times that a call records: DecoderStep::marks of csrc/decoder/decoder.h."""

    def __init__(self, config: ModelConfig) -> None:
        """`config`: of the whole decoder, or of a stage."""
        first = len(config.earlier_layers)
        self._layers = range(first, first + config.num_layers)
        self._times = (ctypes.c_int64 * (3 + len(PER_LAYER) * config.num_layers))()
        self.address = ctypes.addressof(self._times)

    def read(self, began: float, *, embeds: bool, samples: bool) -> Iterator[Region]:
        """The regions of the last call, which began at `began`, in seconds of the monotonic clock.

        `embeds`: the call began with an embedding. `samples`: it ended with logits. The zero of the
        library's clock may differ from that of Python's clock, so the call's first time is taken to
        be `began`. The two are microseconds apart.
        """
        first, at = self._times[0], began
        for index, (name, layer) in enumerate(self._order(embeds, samples), 1):
            ended = began + 1e-9 * (self._times[index] - first)
            yield Region(name, layer, at, ended)
            at = ended

    def _order(self, embeds: bool, samples: bool) -> Iterator[tuple[str, int | None]]:
        if embeds:
            yield "embedding", None
        for layer in self._layers:
            for name in PER_LAYER:
                yield name, layer
        if samples:
            yield "logits", None
