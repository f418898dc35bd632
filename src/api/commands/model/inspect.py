"""`tokenmill model inspect`: describes a model, and how it would be served, without loading it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from ....core.errors import ConfigError
from ..flags.engine import engine_config, merge_model_argument
from ..printing import new_table, print_json, print_table, size_text
from ..progress import ProgressDisplay


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises ConfigError if the engine would refuse the model."""
    merge_model_argument(args)
    config = engine_config(args)
    from ....assembly import inspect_model

    with ProgressDisplay() as progress:
        report = inspect_model(config, progress)
    if args.json:
        print_json(report)
    else:
        _print(report)
    if report.refusal is not None:
        raise ConfigError(report.refusal)
    return 0


def _print(report: Any) -> None:
    print(f"{report.name}  ({report.path})\n")
    _print_rows(
        [
            ("architecture", f"{report.architecture}, {report.implementation} implementation"),
            ("size", f"{report.num_parameters:,} parameters in {report.num_layers} layers"),
            ("computed in", f"{report.dtype} on {report.device}"),
            ("executor", report.executor),
            (
                "weights",
                f"{size_text(report.weight_bytes)} of memory{_each(report)}, "
                f"{size_text(report.file_bytes)} of file",
            ),
            (
                "KV cache",
                f"{size_text(report.kv_bytes_per_token)} per token, {report.kv_cache_dtype}"
                + _behind_windows(report),
            ),
            *_images(report.images),
            ("available", f"{size_text(report.available_bytes)}{_where(report)}"),
            ("context", f"{report.context_that_fits:,} tokens fit, of {report.max_model_len:,}"),
        ]
    )
    print()
    _print_ranks(report)
    print()
    _print_groups(report.groups)
    print()
    _print_dtypes(report.dtypes)
    for slot in ("attention", "linear"):
        _print_backend(slot, getattr(report, f"{slot}_backend"))


def _each(report: Any) -> str:
    return "" if report.num_replicas == 1 else f" for each of {report.num_replicas} replicas"


def _images(images: Any) -> list[tuple[str, str]]:
    if images is None:
        return []
    others = size_text(images.cache + images.pixels + images.encoder)
    tower = f"{size_text(images.tower)} of memory for the encoder"
    tokens = f"{images.num_images} per prompt, of at most {images.tokens_per_image:,} tokens"
    return [("images", f"{tower}, {others} for {tokens}")]


def _where(report: Any) -> str:
    """The memories that have this size."""
    if report.device != "cpu" and len(report.ranks) > 1:
        return " on each GPU"
    return _each(report)


def _print_ranks(report: Any) -> None:
    columns = ("WEIGHTS", "KV PER TOKEN", "KV PER BLOCK", "ACTIVATIONS")
    table = new_table("RANK", *columns, right=columns)
    for one in report.ranks:
        sizes = (one.weights, one.kv_per_token, one.kv_per_block, one.activations)
        table.add_row(str(one.rank), *map(size_text, sizes))
    print_table(table)
    if len(report.ranks) > 1:
        sent = size_text(report.sent_bytes_per_token)
        full = size_text(report.sent_bytes_per_full_step)
        print(
            f"Each rank sends at most {sent} in a step of 1 token, "
            f"{full} in a step of {report.step_tokens}."
        )


def _behind_windows(report: Any) -> str:
    if report.kept_kv_bytes_per_token == report.kv_bytes_per_token:
        return ""
    return f"; {size_text(report.kept_kv_bytes_per_token)} behind the windows of its layers"


def _print_rows(rows: Iterable[tuple[str, str]]) -> None:
    for name, text in rows:
        print(f"{name + ':':<14}{text}")


def _print_groups(groups: Iterable[Any]) -> None:
    right = ("COUNT", "IN THE FILE")
    table = new_table("TENSORS", "COUNT", "FORMAT", "KEPT AS", "IN THE FILE", right=right)
    for one in groups:
        size = size_text(one.num_bytes)
        table.add_row(one.group, str(one.num_tensors), one.format, one.kept_as, size)
    print_table(table)


def _print_dtypes(choices: Iterable[Any]) -> None:
    right = ("WEIGHTS", "KV PER TOKEN", "DIFFERENCE")
    table = new_table("--dtype", "COMPUTED IN", *right, right=right)
    refused = []
    for one in choices:
        if one.refusal is not None:
            refused.append(f"--dtype {one.name}: {one.refusal}")
            continue
        price = "" if one.mean_difference is None else f"{one.mean_difference:g}"
        sizes = (one.weight_bytes, one.kv_bytes_per_token)
        table.add_row(one.name, one.computed_in, *map(size_text, sizes), price)
    print_table(table)
    for line in refused:
        print(line)
    print(
        "DIFFERENCE: of a token's log-probability from float32 on average, measured on a CPU with "
        "the default model (docs/models.md)."
    )


def _print_backend(slot: str, backend: Any) -> None:
    print(f"\n{slot} backend: {backend.name}")
    for name, reasons in backend.others.items():
        first = reasons[0] if reasons else "could also serve, but has a lower priority"
        more = " (--json has all reasons)" if len(reasons) > 1 else ""
        print(f"  {name}: {first}{more}")
