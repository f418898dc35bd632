"""Describes a step in which each token has three rotary positions; see rotary_positions.

The library rotates a token by the row of the rotary table with the index of its position. A step
with three positions per token gets its own table, with one row per token. The index of a token in
the step is then its position, so the library needs no change.

Shape suffixes: t tokens, c columns of a rotary table.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from ..models.native.decoder import Decoder
from .native.structures import DecoderLayerStruct, DecoderModelStruct


class TurnedLayers:
    """The layers of a decoder with the rotary tables of one step."""

    def __init__(self, decoder: Decoder, model: DecoderModelStruct) -> None:
        """`model` describes the decoder."""
        self._decoder = decoder
        size = len(decoder.layers) * ctypes.sizeof(DecoderLayerStruct)
        self._layers = (DecoderLayerStruct * len(decoder.layers))()
        ctypes.memmove(self._layers, model.layers, size)
        self._tables: list[tuple[torch.Tensor, torch.Tensor]] = []

    def follow(
        self, model: DecoderModelStruct, rotary_3t: torch.Tensor
    ) -> tuple[DecoderModelStruct, torch.Tensor]:
        """Return the description of the decoder for a step, and the positions [t] of its tokens.

        `model` describes the same layers as in the constructor. `rotary_3t`: see rotary_positions.
        The description is valid until the next call.
        """
        turns = [table.at(rotary_3t) for table in self._decoder.rotary_tables]
        self._tables = [(_rows(cos_t1c), _rows(sin_t1c)) for cos_t1c, sin_t1c in turns]
        addresses = [(cos.data_ptr(), sin.data_ptr()) for cos, sin in self._tables]
        for struct, layer in zip(self._layers, self._decoder.layers, strict=True):
            if layer.rotary_table is not None:
                struct.cos, struct.sin = addresses[layer.rotary_table]
        turned = DecoderModelStruct.from_buffer_copy(model)
        turned.layers = self._layers
        return turned, torch.from_numpy(np.arange(rotary_3t.shape[1]))


def _rows(turn_t1c: torch.Tensor) -> torch.Tensor:
    """float32 [t, c], contiguous."""
    return turn_t1c[:, 0].float().contiguous()
