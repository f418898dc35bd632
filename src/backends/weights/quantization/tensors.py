"""The tensors of a Hugging Face directory under transformers' names, quantized or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import torch

from ....core.errors import ConfigError
from ....core.log import get_logger
from ..packed import PackedWeights, WeightFormat, Weights
from ..safetensors_files import SafetensorsFiles
from .method import STATIC_SCALES, Method, Parts

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
        stored = set(files.tensor_names())
        self._stems = dict(_quantized(stored, method))
        if not self._stems:
            raise ConfigError(
                f"{files.path} is said to be quantized with {method.name}, but has no tensor that "
                f"ends in {' or '.join(method.markers)}"
            )
        parts = {stem + ending for stem in self._stems.values() for ending in method.endings}
        ignored = {name for name in stored - parts if name.endswith(STATIC_SCALES)}
        if ignored:
            log.info("activation_scales_ignored", number=len(ignored), path=str(files.path))
        plain = stored - parts - ignored
        self._names = (*sorted(plain), *self._stems)

    @property
    def format(self) -> WeightFormat:
        """The format of a layer's matrix. Raises ConfigError if it is damaged."""
        first = min(self._stems, key=lambda name: (".layers." not in name, name))
        return self._read(first, self._parts(first)).format

    def tensor_names(self) -> Sequence[str]:
        """Return the names that the tensors would have if they were not quantized."""
        return self._names

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
        stem, stored = self._stems[name], set(self._files.tensor_names())
        found = [ending for ending in self._method.endings if stem + ending in stored]
        return Parts({ending: self._files.tensor(stem + ending) for ending in found})

    def _read(self, name: str, parts: Parts) -> PackedWeights:
        try:
            return self._method.read(parts)
        except ConfigError as error:
            raise ConfigError(f"{name} of {self._files.path}: {error}") from error


def _quantized(stored: Set[str], method: Method) -> Iterator[tuple[str, str]]:
    """Yield each quantized matrix's name, and what the names of its tensors begin with."""
    for name in sorted(stored):
        marker = next((marker for marker in method.markers if name.endswith(marker)), None)
        if marker is not None:
            stem = name.removesuffix(marker)
            yield stem + method.matrix_ending, stem
