"""The contract of linear backends, which compute the matrix products of a decoder.

A backend turns weights, in floating point or packed, into projections once, at load time. A
projection is then called in every step.

Shape suffixes: t tokens, v vocabulary, e hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from ..weights.packed import WeightFormat, Weights

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSpec:
    """The engine's requirements of a linear backend."""

    dtype: torch.dtype
    """Type of inputs and results, and of weights in floating point."""
    device: torch.device
    format: WeightFormat | None = None
    """The format of the model's matrices, if they are packed. A backend may serve a type only for
    some formats."""


class Projection(Protocol):
    """A function from [tokens, in] to [tokens, out], with its weights."""

    @property
    def num_parameters(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """Memory of the weights, in bytes."""
        ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class Embedding(Protocol):
    """Looks up rows of a matrix [v, e] by token id."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the results."""
        ...

    @property
    def device(self) -> torch.device: ...
    @property
    def num_parameters(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """Memory of the matrix, in bytes."""
        ...

    def __call__(self, token_ids_t: torch.Tensor) -> torch.Tensor:
        """Return the rows [t, e] of token ids, int32 or int64."""
        ...

    def shared(self, share: Callable[[torch.Tensor], torch.Tensor]) -> Embedding:
        """Return the same embedding in other memory. `share` copies a tensor to memory that all
        ranks of a machine have in common."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCapabilities:
    """The optional methods that a backend has."""

    builds: bool = False
    """A class method `build(spec, progress)`; see AttentionCapabilities."""
    measures: bool = False
    """A class method `packed_bytes(spec, format, num_rows, num_inputs)`: the memory of a matrix,
    if it is not the size in the file. A model that is too large is refused before it is loaded."""
    looks_up: bool = False
    """A method `embedding(weights)`, which returns an Embedding of a head that the backend made, in
    the head's memory, or of packed weights of a format that it keeps. Then its heads copy weights
    in floating point, products keep biases in float32, and `packed_bytes` also knows the spec's
    type as a format. Other backends get an embedding in floating point, and a head of tied
    embeddings computes with its memory."""


class LinearBackend(Protocol):
    """Makes the projections of a model.

    The caller dequantizes packed weights of formats that the backend does not keep.
    """

    name: str
    capabilities: LinearCapabilities

    @classmethod
    def reasons_against(cls, spec: LinearSpec) -> list[str]:
        """Return every reason why this backend cannot serve the spec; empty when it can.

        A backend that would be slower than torch here says so: `auto` then passes it over.
        """
        ...

    @classmethod
    def keeps(cls, spec: LinearSpec, format: WeightFormat) -> bool:
        """Whether projections compute with weights of this format without dequantizing them."""
        ...

    def __init__(self, spec: LinearSpec) -> None: ...

    def linear(self, segments: Sequence[Weights], bias: torch.Tensor | None) -> Projection:
        """Make x W^T + b. W consists of segments, one below the other, which may have different
        formats. Tensors have the spec's type and device."""
        ...

    def gate_up(
        self, gate: Weights, up: Weights, bias: torch.Tensor | None, activation: str
    ) -> Projection:
        """Make activation(x gate^T) * (x up^T).

        `bias`, if given, has gate's numbers before up's. `activation` is one of ACTIVATIONS.
        """
        ...

    def head(self, weights: Weights) -> Projection:
        """Make x W^T with a result in float32."""
        ...
