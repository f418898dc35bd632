"""GPTQ: integers of 2, 3, 4 or 8 bits, packed along the inputs.

Layout: https://github.com/AutoGPTQ/AutoGPTQ (auto_gptq/nn_modules/qlinear). In version 1,
`checkpoint_format` "gptq", files hold the zero points minus one, modulo 2^bits; version 2 holds
them as they are. GPTQModel also reads the version from `format`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ....core.errors import ConfigError
from ..config.fields import Fields
from ..formats.bits import as_bytes, pack_nibbles, unpack_words
from ..formats.grouped_ints import grouped_ints
from ..packed import PackedWeights
from .method import FLOATS, Method, Parts, is_ordered, read_group_size, require

_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
"""The number that is added to a stored zero point, by the version."""


def gptq(fields: Fields) -> Method:
    """Raises ConfigError if the settings are not supported."""
    require(fields, "bits", (2, 3, 4, 8), default=None)
    version = "checkpoint_format" if fields.get("checkpoint_format") is not None else "format"
    require(fields, version, tuple(_ZERO_OFFSETS), default="gptq")
    _refuse_overrides(fields)
    reader = _Reader(
        bits=fields.integer("bits"),
        group_size=read_group_size(fields),
        zero_offset=_ZERO_OFFSETS[fields.text(version, "gptq")],
    )
    return Method(
        name="gptq",
        markers=(".qweight",),
        endings=(".qweight", ".qzeros", ".scales", ".g_idx"),
        read=reader.read,
        deciding={".g_idx": is_ordered},
    )


def _refuse_overrides(fields: Fields) -> None:
    """GPTQModel's `dynamic` names modules to skip ("-:pattern"), or settings of their own."""
    dynamic = fields.part("dynamic")
    own = (
        []
        if dynamic is None
        else [key for key in sorted(dynamic.keys()) if not key.startswith("-:")]
    )
    if own:
        raise ConfigError(
            f"{fields.source} has settings for single modules, which is not supported: "
            f"dynamic {own[0]!r:.80}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    bits: int
    group_size: int | None
    zero_offset: int

    def read(self, parts: Parts) -> PackedWeights:
        words = parts.need(".qweight", torch.int32)
        scales = parts.need(".scales", *FLOATS)
        num_inputs, num_outputs = words.shape[0] * 32 // self.bits, words.shape[1]
        if scales.shape[1] != num_outputs:
            raise ConfigError("its parts have different numbers of outputs")
        return grouped_ints(
            (num_outputs, num_inputs),
            bits=8 if self.bits == 8 else 4,
            group_size=self.group_size,
            integers=self._integers(words, num_inputs),
            scales=scales.t().contiguous(),
            zeros=self._zeros(parts.need(".qzeros", torch.int32), num_outputs),
            group_of=parts.optional(".g_idx", torch.int32, dims=1),
        )

    def _integers(self, words: torch.Tensor, num_inputs: int) -> torch.Tensor:
        """Return the plane of integers. With 4 and 8 bits the file's order is GroupedInts'."""
        rows = words.t()
        if self.bits in (4, 8):
            return as_bytes(rows)
        return pack_nibbles(unpack_words(rows, self.bits, num_inputs))

    def _zeros(self, words: torch.Tensor, num_outputs: int) -> torch.Tensor:
        stored = unpack_words(words, self.bits, num_outputs)
        zeros = (stored + self.zero_offset).bitwise_and_(2**self.bits - 1)
        return zeros.t().contiguous()
