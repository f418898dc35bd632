"""vLLM's settings of torch.compile and CUDA graphs.

Steps of decodes are captured in CUDA graphs, and nothing is compiled. So levels and modes of
compilation are checked, but have no effect, apart from the ones that turn graphs off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Any, TypedDict

import msgspec

from ..errors import ConfigError
from ..wording.suggest import near_and_known

CompilationSetting = str | int | Mapping[str, object] | None
"""JSON text, a level, or CompilationConfig."""
MAX_LEVEL = 3
_MAX_CAPTURE_SIZE = 512
_EXAMPLE = "'{\"cudagraph_capture_sizes\": [1, 2, 4, 8]}'"


class CompilationLevel(IntEnum):
    """vLLM's older names of what is compiled."""

    NO_COMPILATION = 0
    DYNAMO_AS_IS = 1
    DYNAMO_ONCE = 2
    PIECEWISE = 3


class CompilationMode(IntEnum):
    """vLLM's newer names of what is compiled."""

    NONE = 0
    STOCK_TORCH_COMPILE = 1
    DYNAMO_TRACE_ONCE = 2
    VLLM_COMPILE = 3


class CUDAGraphMode(StrEnum):
    """vLLM's names of the steps that are captured in CUDA graphs."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"


class CompilationConfig(TypedDict, total=False):
    """A mapping for the option `compilation_config`, with vLLM's names."""

    level: int | None
    """0 to 3, see CompilationLevel."""
    mode: int | str | None
    """0 to 3, or a name of CompilationMode."""
    cudagraph_mode: str | None
    """A name of CUDAGraphMode."""
    cudagraph_capture_sizes: Sequence[int] | None
    """Numbers of tokens in a step."""
    max_cudagraph_capture_size: int | None


def capture_sizes(
    setting: CompilationSetting,
    *,
    sizes: Sequence[int] | None,
    max_size: int | None,
    max_num_seqs: int,
) -> tuple[int, ...]:
    """Return the numbers of decodes for which graphs are captured, ascending; empty: none.

    `setting` is valid. `sizes` and `max_size` are the flags, which win over the setting's values.
    By default these are vLLM's sizes, and `max_num_seqs` itself.
    """
    if isinstance(setting, str):
        setting = _read_json(setting)
    mapping: Mapping[str, Any] = setting if isinstance(setting, Mapping) else {}
    mode = mapping.get("cudagraph_mode")
    if mode is not None and CUDAGraphMode(mode.upper()) is CUDAGraphMode.NONE:
        return ()
    chosen = sizes if sizes is not None else mapping.get("cudagraph_capture_sizes")
    limit = max_size or mapping.get("max_cudagraph_capture_size")
    if chosen is not None:
        largest = min(max_num_seqs, limit or max_num_seqs)
        return tuple(sorted({size for size in chosen if size <= largest}))
    largest = min(max_num_seqs, limit or _MAX_CAPTURE_SIZE)
    usual = (1, 2, 4, *range(8, 256, 8), *range(256, largest, 16))
    return (*(size for size in usual if size < largest), largest)


def check_compilation(setting: CompilationSetting) -> None:
    """Check `compilation_config`. Raises ConfigError for unknown names and wrong values."""
    if isinstance(setting, str):
        setting = _read_json(setting)
    if setting is None:
        return
    if isinstance(setting, Mapping):
        _check_mapping(setting)
    else:
        check_level("--compilation-config", setting)


def check_level(name: str, level: object) -> None:
    """Check a level of optimization or compilation. Raises ConfigError with the setting's name."""
    if not isinstance(level, int) or isinstance(level, bool) or not 0 <= level <= MAX_LEVEL:
        raise ConfigError(f"{name} must be a number from 0 to {MAX_LEVEL}, got {level!r}")


def check_capture_sizes(name: str, sizes: object) -> None:
    """Check numbers of tokens. Raises ConfigError with the setting's name."""
    if (
        isinstance(sizes, (str, bytes))
        or not isinstance(sizes, Sequence)
        or not all(isinstance(size, int) and size > 0 for size in sizes)
    ):
        raise ConfigError(f"{name} must be a list of positive numbers, got {sizes!r}")


def _read_json(text: str) -> int | dict[str, object] | None:
    try:
        return msgspec.json.decode(text, type=int | dict[str, object] | None)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"--compilation-config must be a number or a JSON object, as in {_EXAMPLE}: {error}, "
            f"got {text!r}"
        ) from error


def _check_mapping(setting: Mapping[str, object]) -> None:
    for key, value in setting.items():
        name = f"{key} of --compilation-config"
        if key not in CompilationConfig.__annotations__:
            known = CompilationConfig.__annotations__
            raise ConfigError(f"unknown setting {name}{near_and_known(str(key), known)}")
        if value is None:
            continue
        if key == "cudagraph_capture_sizes":
            check_capture_sizes(name, value)
        elif key == "max_cudagraph_capture_size":
            check_capture_sizes(name, [value])
        elif key == "cudagraph_mode":
            _check_name(name, value, CUDAGraphMode.__members__)
        elif key == "mode" and isinstance(value, str):
            _check_name(name, value, CompilationMode.__members__)
        else:
            check_level(name, value)


def _check_name(name: str, value: object, known: Mapping[str, object]) -> None:
    if not isinstance(value, str) or value.upper() not in known:
        raise ConfigError(f"unknown {name}: {value!r}{near_and_known(str(value), known)}")
