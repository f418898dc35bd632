"""The regions of a native call: the library marks the times at which they end."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from ...core.regions import Region
from ..weights.config.model_config import ModelConfig

PER_LAYER = ("q, k, v", "attention", "attention output", "feed-forward")
"""The regions of a layer. Each begins with the norm before it, if there is one."""


class CallMarks:
    """Memory for the times that a call marks: DecoderStep::marks of csrc/decoder/decoder.h."""

    def __init__(self, config: ModelConfig) -> None:
        """`config`: of the whole decoder, or of a stage."""
        first = len(config.earlier_layers)
        self._layers = range(first, first + config.num_layers)
        self._times = (ctypes.c_int64 * (3 + len(PER_LAYER) * config.num_layers))()
        self.address = ctypes.addressof(self._times)

    def read(self, began: float, *, embeds: bool, samples: bool) -> Iterator[Region]:
        """The regions of the last call, which was made at `began`. `embeds`, `samples`: whether it
        began with an embedding, and whether it ended with logits.

        The library's clock may count from another time than Python's, so the call's first mark is
        taken for `began`. The two are microseconds apart.
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
