"""Tables of the kernels' times, and their ratios to the best peer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Lines = Iterable[str]
Row = Mapping[str, Any]
OURS = ("cuda-paged", "triton")
LARGE_BATCH = 32


def kernels(found: Row) -> Lines:
    """Two tables for each layout of heads: decodes, and prompts."""
    timed = found["kernels"]
    yield "## Kernels"
    yield ""
    yield (
        "Medians of one layer in bfloat16. Backends (blocks of 16, xformers 64) write the step's "
        "keys and values and attend; peers' kernels (torch-sdpa, flash-kernel by block size) only "
        "attend. GB/s counts the minimum of bytes read and written, and its percentage is of the "
        "bandwidth of copies. The ratio to the best peer's time is bold."
    )
    for heads in dict.fromkeys(row["heads"] for row in timed):
        for is_decode in (True, False):
            rows = [r for r in timed if r["heads"] == heads and r["is_decode"] is is_decode]
            if rows:
                yield ""
                yield f"### {heads}: {'decodes' if is_decode else 'prompts, chunks, mixed'}"
                yield ""
                yield from _table(rows, found["machine"].get("copy_gb_per_s"))
    yield from _not_timed(timed)


def targets(found: Row) -> Lines:
    """A table of ratios to peers, which have targets on a Hopper GPU. Untimed ones are left out."""
    yield "## Ratios"
    yield ""
    yield "Below 1 is faster than the best peer's kernel (for FlashAttention: than its best one)."
    yield ""
    yield "| backend | of | cells | geometric mean | worst |"
    yield "|---|---|---|---|---|"
    cells = _cells(found["kernels"])
    for name in OURS:
        for title, is_decode, peer in (
            ("decodes / FlashAttention", True, "flash-kernel"),
            ("decodes / best peer", True, ""),
            ("prompts and chunks / best peer", False, ""),
        ):
            ratios = [
                ratio
                for cell in cells
                if cell[0]["is_decode"] is is_decode
                and (ratio := _ratio(cell, name, peer)) is not None
            ]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                yield f"| {name} | {title} | {len(ratios)} | {mean:.2f} | {max(ratios):.2f} |"
    yield from _bandwidth(found)


def _bandwidth(found: Row) -> Lines:
    """The bandwidth at large batches, as a percentage of the bandwidth of copies."""
    copies = found["machine"].get("copy_gb_per_s")
    for name in OURS:
        parts = [
            _gb_per_s(row) / copies
            for row in found["kernels"]
            if row["contender"] == name
            and row["is_decode"]
            and row["num_decodes"] >= LARGE_BATCH
            and "error" not in row
            and copies
        ]
        if parts:
            yield ""
            yield (
                f"{name}, decodes in batches of {LARGE_BATCH} and more: {min(parts):.0%} to "
                f"{max(parts):.0%} of the bandwidth of copies, {copies} GB/s."
            )


def _cells(timed: Sequence[Row]) -> list[list[Row]]:
    """The rows without errors, grouped by layout and workload."""
    cells: dict[tuple[str, str], list[Row]] = {}
    for row in timed:
        if "error" not in row:
            cells.setdefault((row["heads"], row["workload"]), []).append(row)
    return list(cells.values())


def _ratio(cell: Sequence[Row], name: str, peer: str) -> float | None:
    """The ratio of a backend's time to the best of the peers whose names begin with `peer`."""
    own = next((row["microseconds"] for row in cell if row["contender"] == name), None)
    peers = [r["microseconds"] for r in cell if r["is_peer"] and r["contender"].startswith(peer)]
    if not peer:
        others = ("xformers", "flash-attn")
        peers += [r["microseconds"] for r in cell if r["contender"] in others]
    return own / min(peers) if own is not None and peers else None


def _table(rows: Sequence[Row], copies: float | None) -> Lines:
    names = list(dict.fromkeys(row["contender"] for row in rows if "error" not in row))
    yield f"| workload | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for workload in dict.fromkeys(row["workload"] for row in rows):
        found = {row["contender"]: row for row in rows if row["workload"] == workload}
        cell = [row for row in found.values() if "error" not in row]
        shown = [_shown(found.get(name), copies) + _times(cell, name) for name in names]
        yield f"| {workload} | {' | '.join(shown)} |"


def _shown(row: Row | None, copies: float | None) -> str:
    """The time, with the rate that bounds it: bandwidth for decodes, arithmetic for the rest."""
    if row is None or "error" in row:
        return ""
    mark = {"graph": "", "wall clock": ""}.get(row["method"], " (with launches)")
    if row["is_decode"]:
        part = f" ({_gb_per_s(row) / copies:.0%})" if copies else ""
        return f"{row['microseconds']:.1f} µs, {_gb_per_s(row):.0f} GB/s{part}{mark}"
    tera = row["operations"] / row["microseconds"] / 1e6
    return f"{row['microseconds']:.1f} µs, {tera:.0f} TFLOP/s{mark}"


def _times(cell: Sequence[Row], name: str) -> str:
    """The ratio to the best peer, for tokenmill's own kernels."""
    ratio = _ratio(cell, name, "") if name in OURS else None
    return "" if ratio is None else f", **{ratio:.2f}x**"


def _gb_per_s(row: Row) -> float:
    return float(row["bytes"]) / float(row["microseconds"]) / 1e3


def _not_timed(timed: Sequence[Row]) -> Lines:
    """The workloads without times: each reason once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in timed:
        if "error" in row:
            workload = f"{row['heads']} {row['workload']}"
            reasons.setdefault((row["contender"], row["error"]), []).append(workload)
    if reasons:
        yield ""
        yield "Not timed:"
        yield ""
    for (name, reason), workloads in reasons.items():
        which = "; ".join(workloads[:3]) + (" and others" if len(workloads) > 3 else "")
        yield f"- {name} ({len(workloads)}: {which}): {reason[:400]}"
