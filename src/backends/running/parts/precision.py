"""The choice of the precision of a model and of its KV cache."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ....core.errors import ConfigError
from ....core.log import get_logger
from ...linear.base import LinearBackend, LinearSpec
from ...machine.device import has_bfloat16
from ...weights.formats.gguf_blocks import FLOAT16
from ...weights.packed import WeightFormat

log = get_logger("model")

_KV_CACHE_DTYPES = {
    "auto": None,
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""Types by their names in --kv-cache-dtype."""


PRICES: Mapping[str, float] = {"bfloat16": 0.022, "float16": 0.0013, "float32": 2.6e-6}
"""Mean difference of a token's log-probability on a CPU, by --dtype, from transformers' in float32:
the default model in a float32 file, measured by `python benchmarks/precisions.py`
(benchmarks/results/precisions.json)."""
KEPT_PRICE = 5.3e-6
"""The same, for a float16 file whose weights stay in float16."""


def price_of(name: str, stored: torch.dtype) -> float:
    """The mean difference to expect from a value of --dtype for a file of this type on a CPU."""
    return KEPT_PRICE if name == "float16" and stored is not torch.float32 else PRICES[name]


def log_rounding(stored: torch.dtype | WeightFormat, spec: LinearSpec, keeps_float16: bool) -> None:
    """Log the price if weights have fewer bits in memory than in the file.

    `keeps_float16`: whether --dtype float16 is possible.
    """
    is_half = spec.format == FLOAT16 and spec.dtype is torch.float32
    kept = torch.float16 if is_half else spec.dtype
    if spec.device.type != "cpu" or stored not in (torch.float32, torch.float16):
        return
    if kept is stored or kept is torch.float32:
        return
    names = ["float16", "float32"] if keeps_float16 and not is_half else ["float32"]
    log.info(
        "weights_rounded",
        stored=_name_of(stored),
        kept_as=_name_of(kept),
        mean_difference_of_logprobs=f"about {price_of(_name_of(kept), stored):g}",
        more_exact="; ".join(
            f"--dtype {name}: {price_of(name, stored):g} in {_SIZES[name]} memory" for name in names
        ),
    )


_SIZES = {"float16": "about the same", "float32": "2 times the"}


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def choose_dtype(
    name: str,
    published: torch.dtype | WeightFormat,
    device: torch.device,
    linear: type[LinearBackend],
) -> torch.dtype:
    """The precision to compute a model in. `name` is the value of --dtype.

    "auto" is bfloat16 if the device computes it natively, else float32, with three exceptions: a
    model published in float16 stays in float16 on a GPU, and is computed in float32 on a CPU if its
    weights stay in float16, and a model whose weights stay packed in bfloat16 is computed in
    bfloat16.

    "float16" on a CPU is float32, with weights in float16. Raises ConfigError if they are not kept.
    """
    if device.type == "cpu" and name in ("auto", "float16"):
        if published == FLOAT16 and keeps_float16(device, linear):
            return torch.float32
        if name == "float16":
            raise ConfigError(_no_float16(published, linear))
    if name == "auto":
        if device.type == "cuda" and published is torch.float16:
            return torch.float16
        wants_bfloat16 = has_bfloat16(device) or _stays_packed(
            published, torch.bfloat16, device, linear
        )
        return torch.bfloat16 if wants_bfloat16 else torch.float32
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def choose_kv_cache_dtype(name: str) -> torch.dtype | None:
    """The 8-bit type that a value of --kv-cache-dtype names; None for "auto"."""
    return _KV_CACHE_DTYPES[name]


def keeps_float16(device: torch.device, linear: type[LinearBackend]) -> bool:
    """Whether weights stay in float16 for products in float32."""
    return device.type == "cpu" and _stays_packed(FLOAT16, torch.float32, device, linear)


def _no_float16(published: torch.dtype | WeightFormat, linear: type[LinearBackend]) -> str:
    if isinstance(published, torch.dtype):
        reason = "this model implementation computes with weights of one type"
    elif published != FLOAT16:
        reason = f"its weights are packed in {published.name}"
    else:
        reason = f"linear backend {linear.name!r} does not keep them here"
    return (
        f"--dtype float16 keeps weights in float16 and computes in float32 on a CPU, but {reason}: "
        "use --dtype auto, bfloat16 or float32"
    )


def _stays_packed(
    published: torch.dtype | WeightFormat,
    dtype: torch.dtype,
    device: torch.device,
    linear: type[LinearBackend],
) -> bool:
    if isinstance(published, torch.dtype):
        return False
    spec = LinearSpec(dtype=dtype, device=device, format=published)
    return not linear.reasons_against(spec) and linear.keeps(spec, published)
