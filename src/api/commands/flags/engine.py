"""Command-line flags of the engine, generated from the fields of EngineConfig."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....core.config import EngineConfig
from ....core.errors import ConfigError
from ....core.settings.declaration import flags
from .groups import flag_group

SPECULATION = (
    "speculative_method",
    "speculative_model",
    "num_speculative_tokens",
    "draft_length",
    "speculative_adaptive",
    "speculative_config",
)
"""Fields that commands without speculation leave out."""
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SERVING = (
    "metrics_prefix",
    "otlp_traces_endpoint",
    "kv_events_config",
    "data_parallel_size",
    "router",
)
"""Settings that only a server needs."""


def _in_group(name: str) -> tuple[str, ...]:
    found, group = [], ""
    for field in dataclasses.fields(EngineConfig):
        group = field.metadata.get("group", group)
        found += [field.name] if group == name else []
    return tuple(found)


IMAGES = _in_group("images")
"""Settings without effect on prompts of text."""


def add_engine_flags(parser: argparse.ArgumentParser, *, leave_out: Sequence[str] = ()) -> None:
    """Add one flag for each field of EngineConfig, except the fields in `leave_out`.

    A field is in the group of the nearest field before it that names one.
    """
    hints = typing.get_type_hints(EngineConfig)
    group = ""
    for field in dataclasses.fields(EngineConfig):
        group = field.metadata.get("group", group)
        if field.name not in leave_out:
            _add_flag(flag_group(parser, group), field, hints[field.name])


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument MODEL; `merge_model_argument` takes it as --model."""
    parser.add_argument(
        "model_argument",
        metavar="MODEL",
        nargs="?",
        help="folder, .gguf file or ORG/NAME, as --model",
    )


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of the engine that flags have set, by field."""
    names = (field.name for field in dataclasses.fields(EngineConfig))
    return {name: vars(args)[name] for name in names if vars(args).get(name) is not None}


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The configuration that the given flags set. Raises ConfigError."""
    return EngineConfig.from_options(**given_settings(args))


def merge_model_argument(args: argparse.Namespace) -> None:
    """Take the argument MODEL as --model. Raises ConfigError if both name different models."""
    if args.model_argument is None:
        return
    if args.model not in (None, args.model_argument):
        raise ConfigError(f"two models are given: {args.model_argument} and --model {args.model}")
    args.model = args.model_argument


def parse_size(text: str) -> int:
    """Bytes from "1073741824", "1024M" or "1G"; for argparse."""
    factor = _SIZES.get(text[-1:].upper(), 1)
    number = text[:-1] if factor > 1 else text
    try:
        size = int(float(number) * factor)
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size: give bytes, or a number with K, M or G"
        )
    return size


def _parse_count(text: str) -> int:
    """A number of tokens, which may have vLLM's short form: "8k" is 8,000, and "8K" is 8,192."""
    factor = {"k": 1000, "K": 1024}.get(text[-1:], 1)
    try:
        return int(float(text[:-1]) * factor) if factor > 1 else int(text)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number: give 8192, 8K or 8k (8000)"
        ) from None


def _parse_length(text: str) -> int | None:
    """A length, or None for what the model and the KV cache allow: "auto" or "-1" in vLLM."""
    return None if text in ("auto", "-1") else _parse_count(text)


def _parse_size_or_zero(text: str) -> int:
    return 0 if text == "0" else parse_size(text)


def _parse_level(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a level from 0 to 3; JSON belongs to --compilation-config"
        )
    return int(text)


_PARSERS: Mapping[str, Callable[[str], int | None]] = {
    "max_model_len": _parse_length,
    "max_num_batched_tokens": _parse_count,
    "kv_cache_memory": parse_size,
    "model_cache_size": _parse_size_or_zero,
    "optimization_level": _parse_level,
    "step_log_size": _parse_size_or_zero,
}


def _add_flag(group: Any, field: dataclasses.Field[Any], hint: Any) -> None:
    kind = _plain_type(hint)
    names = flags(field)
    text = _escape(field.metadata["help"])
    if field.default is not None and kind is not bool:
        text += f" (default: {field.default})"
    if kind is bool:
        words: dict[Any, str] = {True: "on", False: "off", None: "plugins.toml decides"}
        group.add_argument(
            *names,
            dest=field.name,
            action=argparse.BooleanOptionalAction,
            default=None,
            help=f"{text} (default: {words[field.default]})",
        )
        return
    group.add_argument(
        *names,
        dest=field.name,
        type=_PARSERS.get(field.name, kind),
        nargs="+" if typing.get_origin(_given_type(hint)) is Sequence else None,
        default=None,
        metavar=_metavar(field, hint),
        help=text,
    )


def _metavar(field: dataclasses.Field[Any], hint: Any) -> str:
    """The name of the value in help: the choices, or the kind of value."""
    if known := field.metadata.get("one_of"):
        return "{" + ",".join(map(str, known)) + "}"
    of_type = {int: "N", float: "N"}.get(_plain_type(hint), "NAME")
    return str(field.metadata.get("metavar", of_type))


def _plain_type(hint: Any) -> type:
    """The type of one value: `int` for `int | None` and for `Sequence[int] | None`."""
    given = _given_type(hint)
    if typing.get_origin(given) is Sequence:
        (given,) = typing.get_args(given)
    assert isinstance(given, type)
    return given


def _given_type(hint: Any) -> Any:
    """The first type of a union that is not None."""
    if isinstance(hint, types.UnionType):
        return next(kind for kind in typing.get_args(hint) if kind is not types.NoneType)
    return hint


def _escape(text: str) -> str:
    return text.replace("%", "%%")
