"""The tensors of a Hugging Face directory under transformers' names, quantized or not."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence, Set

import torch

from ....core.errors import ConfigError
from ....core.log import get_logger
from ..files.safetensors_files import SafetensorsFiles
from ..packed import PackedWeights, StoredTensor, WeightFormat, Weights
from .method import OF_ACTIVATIONS, Method, Parts

log = get_logger("model")


class QuantizedTensors:
    """Tensors, some of which a quantization method has spread over several.

    The files say which: a matrix is quantized if it has the method's tensors. The lists of
    exceptions in the configuration (`modules_to_not_convert`, `ignore`) are not needed for that.
    """

    def __init__(self, files: SafetensorsFiles, method: Method) -> None:
        """Raises ConfigError if no matrix is quantized."""
        self._files = files
        self._method = method
        self._stored = stored = set(files.tensor_names())
        self._stems = dict(_quantized(stored, method))
        if not self._stems:
            raise ConfigError(
                f"{files.path} is said to be quantized with {method.name}, but has no tensor that "
                f"ends in {' or '.join(method.markers)}"
            )
        parts = {stem + ending for stem in self._stems.values() for ending in method.endings}
        ignored = {name for name in stored - parts if name.endswith(OF_ACTIVATIONS)}
        if ignored:
            log.info("activation_scales_ignored", number=len(ignored), path=str(files.path))
        self._described: dict[Hashable, StoredTensor] = {}
        plain = stored - parts - ignored
        if twice := sorted(plain & self._stems.keys()):
            raise ConfigError(f"{files.path} has {twice[0]} twice: quantized and not quantized")
        self._names = (*sorted(plain), *self._stems)

    @property
    def format(self) -> WeightFormat:
        """The format of a layer's matrix. Raises ConfigError if it is damaged."""
        first = min(self._stems, key=lambda name: (".layers." not in name, name))
        return self._read(first, self._parts(first)).format

    def tensor_names(self) -> Sequence[str]:
        """Return the names that the tensors would have if they were not quantized."""
        return self._names

    def stored(self, name: str) -> StoredTensor:
        """Describe a tensor. Of matrices whose parts are alike, only one is read."""
        if name not in self._stems:
            return self._files.stored(name)
        stem = self._stems[name]
        alike = tuple(self._likeness(stem, ending) for ending in self._endings(stem))
        if alike not in self._described:
            weights = self._read(name, self._parts(name))
            self._described[alike] = StoredTensor(weights.shape, weights.format, weights.num_bytes)
        return self._described[alike]

    def _likeness(self, stem: str, ending: str) -> Hashable:
        """Return what matrices of one shape and format have in common in one of their parts.

        Zero points and scales are not read: they change the format, but hardly the memory.
        """
        decides = self._method.deciding.get(ending)
        numbers = None if decides is None else decides(self._files.tensor(stem + ending))
        return ending, self._files.stored(stem + ending), numbers

    def matrix(self, name: str) -> Weights:
        """Read a matrix in its stored form. Raises ConfigError if it is missing or damaged."""
        if name not in self._stems:
            return self._files.tensor(name)
        return self._read(name, self._parts(name))

    def tensor(self, name: str) -> torch.Tensor:
        """Read a tensor, in float32 if it is quantized; see `matrix` for errors."""
        if name not in self._stems:
            return self._files.tensor(name)
        parts = self._parts(name)
        return self._method.restore(parts, self._read(name, parts))

    def _parts(self, name: str) -> Parts:
        stem = self._stems[name]
        endings = self._endings(stem)
        return Parts({ending: self._files.tensor(stem + ending) for ending in endings})

    def _endings(self, stem: str) -> list[str]:
        """Return the endings of the tensors that a quantized matrix has."""
        return [ending for ending in self._method.endings if stem + ending in self._stored]

    def _read(self, name: str, parts: Parts) -> PackedWeights:
        try:
            return self._method.read(parts)
        except ConfigError as error:
            raise ConfigError(f"{name} of {self._files.path}: {error}") from error


def _quantized(stored: Set[str], method: Method) -> Iterator[tuple[str, str]]:
    """Yield each quantized matrix's name, and the prefix of its tensors' names."""
    for name in sorted(stored):
        marker = next((marker for marker in method.markers if name.endswith(marker)), None)
        if marker is not None:
            stem = name.removesuffix(marker)
            yield stem + method.matrix_ending, stem
