"""Reads the rotary position embeddings of a config.json of transformers 4 or 5."""

from __future__ import annotations

from typing import Any

from ....core.errors import ConfigError
from ....core.wording.suggest import did_you_mean
from ..config.architectures import Architecture
from ..config.fields import Fields
from ..config.rope_config import RopeConfig, RopeScaling

_KEYS = {
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "long_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "short_factor",
    "truncate",
    "type",
}
_SECTIONS = "mrope_section"
_SCALINGS = {
    "default": RopeScaling.NONE,
    "linear": RopeScaling.LINEAR,
    "dynamic": RopeScaling.DYNAMIC,
    "llama3": RopeScaling.LLAMA3,
    "yarn": RopeScaling.YARN,
    "longrope": RopeScaling.LONGROPE,
    "su": RopeScaling.LONGROPE,
}
_NESTED = ("full_attention", "sliding_attention")
"""Parts for layers without and with a window, where these differ."""
_WITH_DEFAULT_FACTOR = (RopeScaling.YARN, RopeScaling.LONGROPE)


def read_ropes(
    fields: Fields, row: Architecture, max_positions: int
) -> tuple[RopeConfig, RopeConfig]:
    """Return the rotations of layers without and with a window. Raises ConfigError."""
    part = _part(fields)
    if row.local_theta is None:
        rope = _read(fields, row, part, max_positions)
        return rope, rope
    theta = fields.number("rope_local_base_freq", row.local_theta)
    if _is_nested(part):
        full, local = (part.part(name) or Fields({}, part.source) for name in _NESTED)
        _refuse_unknown(part, set(_NESTED))
        _refuse_unknown(local, _KEYS)
        theta = local.number("rope_theta", theta)
        if _scaling(local) is not RopeScaling.NONE:
            raise ConfigError(f"{local.source} has a rope_type, but layers with a window have none")
        part = full
    return _read(fields, row, part, max_positions), RopeConfig(theta=theta)


def read_rotary_size(fields: Fields, row: Architecture, head_size: int) -> int | None:
    """Return the number of elements of a head that are rotated; None: all. Raises ConfigError."""
    factor = _rotary_factor(fields)
    if not 0 < factor <= 1:
        raise ConfigError(
            f"partial_rotary_factor in {fields.source} must be between 0 and 1, got {factor}"
        )
    if factor != 1.0 and not row.partial_rotary:
        raise ConfigError(
            f"{fields.source} rotates only {factor} of each head (partial_rotary_factor), "
            f"which is not supported for {row.name}"
        )
    return None if factor == 1.0 else int(head_size * factor)


def _part(fields: Fields) -> Fields:
    """`rope_parameters` of transformers 5, or `rope_scaling` of 4."""
    part = fields.part("rope_scaling" if fields.get("rope_scaling") else "rope_parameters")
    return part or Fields({}, fields.source)


def _is_nested(part: Fields) -> bool:
    return bool(part.keys() & set(_NESTED))


def _rotary_factor(fields: Fields) -> float:
    """Return the part of a head that is rotated. Raises ConfigError if layers differ in it."""
    part, name = _part(fields), "partial_rotary_factor"
    common = part.number(name, fields.number(name, 1.0))
    kinds = [one for one in map(part.part, _NESTED) if one is not None]
    factors = {kind.number(name, common) for kind in kinds} or {common}
    if len(factors) > 1:
        raise ConfigError(
            f"{part.source} has layers with {name} {' and '.join(map(str, sorted(factors)))}, "
            "which is not supported"
        )
    return factors.pop()


def _read(fields: Fields, row: Architecture, rope: Fields, max_positions: int) -> RopeConfig:
    _refuse_unknown(rope, _KEYS if row.rope_sections is None else _KEYS | {_SECTIONS})
    if row.rope_sections is not None and _kind(rope) == "mrope":
        rope = rope.replaced({"type": None, "rope_type": "default"})
    scaling = _scaling(rope)
    if scaling is RopeScaling.YARN and rope.get("long_factor"):
        scaling = RopeScaling.LONGROPE  # old files of Phi-3 say "yarn", as transformers knows
    original = fields.integer(
        "original_max_position_embeddings",
        rope.integer("original_max_position_embeddings", max_positions),
    )
    return RopeConfig(
        theta=rope.number("rope_theta", fields.number("rope_theta", 10000.0)),
        scaling=scaling,
        factor=_factor(rope, scaling, max_positions / max(original, 1)),
        original_max_position_embeddings=original,
        low_freq_factor=_of(RopeScaling.LLAMA3, rope, scaling, "low_freq_factor", 1.0),
        high_freq_factor=_of(RopeScaling.LLAMA3, rope, scaling, "high_freq_factor", 4.0),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
        attention_factor=rope.optional_number("attention_factor"),
        mscale=rope.optional_number("mscale"),
        mscale_all_dim=rope.optional_number("mscale_all_dim"),
        short_factors=_factors(rope, scaling, "short_factor"),
        long_factors=_factors(rope, scaling, "long_factor"),
        sections=_sections(rope, row),
    )


def _sections(rope: Fields, row: Architecture) -> tuple[int, ...]:
    if row.rope_sections is None or rope.get(_SECTIONS) is None:
        return tuple(row.rope_sections or ())
    return tuple(map(int, rope.numbers(_SECTIONS)))


def _kind(rope: Fields) -> Any:
    return rope.get("rope_type") or rope.get("type") or "default"


def _scaling(rope: Fields) -> RopeScaling:
    kind = _kind(rope)
    if kind not in tuple(_SCALINGS):
        raise ConfigError(
            f"{rope.source} has rope_type {kind!r:.80}, which is not supported; "
            f"supported: {', '.join(_SCALINGS)}"
        )
    return _SCALINGS[kind]


def _refuse_unknown(part: Fields, known: set[str]) -> None:
    unknown = sorted(part.keys() - known)
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)} in {part.source} is not supported"
            f"{did_you_mean(unknown[0], sorted(known))}"
        )


def _factor(rope: Fields, scaling: RopeScaling, ratio: float) -> float:
    """Return the factor of the context; `ratio` is the one that the stated lengths have."""
    if scaling in (RopeScaling.NONE, RopeScaling.DYNAMIC):
        return 1.0
    return rope.number("factor", ratio if scaling in _WITH_DEFAULT_FACTOR else None)


def _factors(rope: Fields, scaling: RopeScaling, name: str) -> tuple[float, ...]:
    return rope.numbers(name) if scaling is RopeScaling.LONGROPE else ()


def _of(owner: RopeScaling, rope: Fields, scaling: RopeScaling, name: str, default: float) -> float:
    """Read a number that the scaling `owner` requires; other scalings get the default."""
    return rope.number(name) if scaling is owner else default
