"""Checks of the promises that the engine relies on in an attention backend, one function each.

Each takes the backend's class and a specification, which names device and precision. It raises
AssertionError if the promise is broken, and Refused if the backend does not support the checked
specification.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import torch

from ....backends.attention.base import AttentionBackend, AttentionSpec, GraphSupport, is_graphable
from ....backends.attention.fp8 import FP8_DTYPES, movable
from ....backends.attention.kv_layout import KVLayout
from ....backends.attention.reasons import reasons_against
from .graphs import CapturedStep
from .steps import Span, Step

BackendClass = type[AttentionBackend]

_HEAD_SIZES = (32, 64, 128, 16, 256)
_BLOCK_SIZES = (16, 64, 128, 256)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_WINDOWS = (1, 11, 37, 1000)
_CAPS = (0.7, 30.0)
_MAX_MODEL_LEN = 320


def _spans(*lengths: tuple[int, int]) -> tuple[Span, ...]:
    return tuple(Span(num_queries=queries, seq_len=length) for queries, length in lengths)


_DECODES = _spans(*((1, n) for n in (1, 7, 16, 17, 40, 130, 131, 300)))
_PROMPTS = _spans(*((n, n) for n in (1, 2, 8, 33, 70, 129)))
_CHUNKS = _spans((2, 3), (8, 24), (5, 61), (40, 47), (1, 30), (64, 128), (3, 200))
BATCHES: Mapping[str, tuple[Sequence[Span], int]] = {
    "decodes": (_DECODES, len(_DECODES)),
    "prompts": (_PROMPTS, 0),
    "chunks": (_CHUNKS, 0),
    "mixed": ((*_DECODES, *_CHUNKS, *_PROMPTS), len(_DECODES)),
}
"""Sequences of a step by kind, and how many of the first ones count as decodes."""


class Refused(Exception):
    """The backend has reasons against the specification to be checked."""


def find_spec(
    backend: BackendClass, device: torch.device, dtype: torch.dtype | None = None
) -> AttentionSpec:
    """A small specification that the backend accepts on a device.

    Raises Refused with the backend's reasons if it accepts none.
    """
    dtypes = _DTYPES if dtype is None else (dtype,)
    reasons: list[str] = []
    for own_dtype, head_size, block_size in product(dtypes, _HEAD_SIZES, _BLOCK_SIZES):
        spec = AttentionSpec(
            num_heads=4,
            num_kv_heads=2,
            head_size=head_size,
            block_size=block_size,
            dtype=own_dtype,
            device=device,
            scale=head_size**-0.5,
        )
        own_reasons = backend.reasons_against(spec)
        if not own_reasons:
            return spec
        reasons = reasons or own_reasons
    raise Refused(f"on {device}: {'; '.join(reasons)}")


def vary(backend: BackendClass, spec: AttentionSpec, **changes: Any) -> AttentionSpec:
    """The specification with changes. Raises Refused with the backend's reasons against it."""
    changed = replace(spec, **changes)
    reasons = reasons_against(backend, changed)
    if reasons:
        raise Refused("; ".join(reasons))
    return changed


def check_reasons(backend: BackendClass, device: torch.device) -> None:
    """`reasons_against` returns a list of texts for any specification, the same at every call."""
    for spec in _odd_specs(device):
        try:
            reasons = backend.reasons_against(spec)
        except Exception as error:
            raise AssertionError(
                f"reasons_against raised {type(error).__name__}: {error}, for {spec}"
            ) from error
        assert isinstance(reasons, list) and all(r and isinstance(r, str) for r in reasons), (
            f"reasons are a list of texts, got {reasons!r} for {spec}"
        )
        assert backend.reasons_against(spec) == reasons, f"a second call gives others: {spec}"


def check_cache_size(backend: BackendClass, spec: AttentionSpec) -> None:
    """A cache has room for the keys and values of its blocks and for nothing else.

    The engine divides the memory by this size. A cache without blocks is empty.
    """
    own_bytes = 2 * spec.block_size * spec.num_kv_heads * spec.head_size
    for num_blocks in (0, 1, 7):
        shape = backend(spec).kv_cache_shape(num_blocks)
        assert isinstance(shape, tuple) and math.prod(shape) == num_blocks * own_bytes, (
            f"{num_blocks} blocks have {num_blocks * own_bytes} numbers, but a cache of shape "
            f"{shape} has {math.prod(shape)}; {spec}"
        )


def check_step(backend: BackendClass, spec: AttentionSpec, batch: str) -> None:
    """One of BATCHES equals the reference. Slots after a sequence's end have no effect."""
    step, made = Step(spec, *BATCHES[batch]), backend(spec)
    step.check(step.run(made, step.new_cache(made)))


def check_shared_prefix(backend: BackendClass, spec: AttentionSpec) -> None:
    """Sequences with the same beginning may share their first blocks."""
    size, spans = spec.block_size, _spans((1, 300), (40, 300))
    alone, made = Step(spec, spans, 1), backend(spec)
    num_shared = (300 - 40) // size
    first, second = alone.tables
    tables = [first, torch.cat([first[:num_shared], second[num_shared:]])]
    step = Step(spec, spans, 1, tables=tables)
    for rows in (step.k, step.v):
        rows[1][: num_shared * size] = rows[0][: num_shared * size]
    step.check(step.run(made, step.new_cache(made)))


def check_shared_heads(backend: BackendClass, spec: AttentionSpec) -> None:
    """Each query head uses the KV head of its group: the first group uses the first KV head."""
    ratios = [(4, 2), (6, 2), (8, 1)]
    _check_each(backend, [replace(spec, num_heads=h, num_kv_heads=k) for h, k in ratios])


def check_window(backend: BackendClass, spec: AttentionSpec) -> None:
    """With a sliding window, a query sees itself and the `window - 1` tokens before it."""
    _check_each(backend, [replace(spec, sliding_window=window) for window in _WINDOWS])


def check_soft_cap(backend: BackendClass, spec: AttentionSpec) -> None:
    """Scores are capped to (-cap, cap), with and without a window. Some are far beyond the cap."""
    steep = replace(spec, scale=spec.scale * 10)
    capped = [replace(steep, logits_soft_cap=cap) for cap in _CAPS]
    _check_each(backend, [*capped, *(replace(s, sliding_window=37) for s in capped)])


def check_sinks(backend: BackendClass, spec: AttentionSpec) -> None:
    """The sinks of the heads take part in the softmax."""
    _check_each(backend, [replace(spec, has_sinks=True)])


def check_sees_ahead(backend: BackendClass, spec: AttentionSpec) -> None:
    """Queries see the last key that the step names for them, with and without windows and caps."""
    ahead = replace(spec, sees_ahead=True)
    windows = [replace(ahead, sliding_window=window) for window in _WINDOWS]
    capped = replace(ahead, logits_soft_cap=_CAPS[1], sliding_window=_WINDOWS[2])
    _check_each(backend, [ahead, *windows, capped])


def check_fp8(backend: BackendClass, spec: AttentionSpec) -> None:
    """Steps, unused blocks, copies and graphs are right with a cache of each supported 8-bit
    type."""
    specs = [replace(spec, kv_cache_dtype=dtype) for dtype in FP8_DTYPES]
    taken = [spec for spec in specs if not reasons_against(backend, spec)]
    if not taken:
        raise Refused("; ".join(reasons_against(backend, specs[0])))
    for varied in taken:
        for batch in BATCHES:
            check_step(backend, varied, batch)
        check_unused_blocks(backend, varied)
        check_copies(backend, varied)
        check_graphs(backend, varied)


def check_unused_blocks(backend: BackendClass, spec: AttentionSpec) -> None:
    """Blocks that are in no table have no effect, even if they are NaN (also not times 0)."""
    step, made = Step(spec, *BATCHES["mixed"]), backend(spec)
    lengths = [len(table) * spec.block_size for table in step.tables]
    earlier = Step(spec, _spans(*((n, n) for n in lengths)), 0, tables=step.tables, seed=1)
    shape = made.kv_cache_shape(step.num_blocks)
    cache = torch.full(shape, torch.nan, dtype=spec.cache_dtype, device=spec.device)
    earlier.run(made, cache)  # fills the blocks of the step to their ends
    step.write_known(made, cache)
    step.check(step.run(made, cache))


def check_other_sequences(backend: BackendClass, spec: AttentionSpec) -> None:
    """A step changes only its own slots in the cache; block 0 also stays the same."""
    step, made = Step(spec, *BATCHES["mixed"]), backend(spec)
    num_blocks = -(-300 // spec.block_size)
    above = torch.arange(step.num_blocks, step.num_blocks + num_blocks)
    bystanders = Step(
        spec,
        _spans((1, min(spec.block_size, 300)), (1, 300)),
        2,
        tables=[torch.tensor([0]), above],
        seed=1,
    )
    cache = bystanders.new_cache(made)
    step.write_known(made, cache)
    step.run(made, cache)
    bystanders.check(bystanders.run(made, cache))


def check_neighbours(backend: BackendClass, spec: AttentionSpec) -> None:
    """If the numbers of a sequence are NaN, the results of all others are right."""
    step, made = Step(spec, *BATCHES["mixed"]), backend(spec)
    spoiled = (2, len(_DECODES) + 2, len(step.spans) - 2)
    for index in spoiled:
        for rows in (step.q, step.k, step.v):
            rows[index].fill_(torch.nan)
    step.check(step.run(made, step.new_cache(made)), spoiled=spoiled)


def check_views(backend: BackendClass, spec: AttentionSpec) -> None:
    """Queries, keys and values may be slices of one projection, with strides between tokens."""
    step, made = Step(spec, *BATCHES["mixed"]), backend(spec)
    inputs = step.inputs()
    joined = torch.cat(inputs, dim=1)
    q_thd, k_tkd, v_tkd = torch.split(joined, [x.shape[1] for x in inputs], dim=1)
    out_thd = torch.full_like(inputs[0], torch.nan)
    metadata = made.build_metadata(step.batch)
    made.forward(0, q_thd, k_tkd, v_tkd, step.new_cache(made), metadata, out_thd)
    step.check(out_thd)
    assert torch.equal(joined, torch.cat(inputs, dim=1)), "forward changes its inputs"


def check_layers(backend: BackendClass, spec: AttentionSpec) -> None:
    """Metadata is built once for every layer. `forward` changes neither it nor the batch."""
    made, layers = backend(spec), [Step(spec, *BATCHES["mixed"])]
    layers += [Step(spec, *BATCHES["mixed"], tables=layers[0].tables, seed=n) for n in (1, 2)]
    batch = layers[0].batch
    metadata = made.build_metadata(batch)
    for layer, step in enumerate(layers):
        q_thd, k_tkd, v_tkd = step.inputs()
        out_thd = torch.full_like(q_thd, torch.nan)
        made.forward(layer, q_thd, k_tkd, v_tkd, step.new_cache(made), metadata, out_thd)
        step.check(out_thd)
    for name in ("query_start_loc", "seq_lens", "block_tables_bm", "slot_mapping_t"):
        untouched = getattr(layers[0].batch, name)
        assert torch.equal(getattr(batch, name), untouched), f"it changes the batch's {name}"


def check_copies(backend: BackendClass, spec: AttentionSpec) -> None:
    """Blocks are copied to the host's cache and back to other places, in the given order."""
    step, made = Step(spec, *BATCHES["chunks"]), backend(spec)
    device_cache = step.new_cache(made)
    blocks = torch.cat(step.tables).tolist()
    is_pinned = spec.device.type == "cuda"
    host_cache = torch.zeros(
        made.kv_cache_shape(len(blocks) + 1), dtype=spec.cache_dtype, pin_memory=is_pinned
    )
    made.copy_blocks(device_cache, host_cache, [(b, i) for i, b in enumerate(blocks)])
    moved = Step(spec, step.spans, 0, tables=[table.flip(0) for table in step.tables])
    moved.q, moved.k, moved.v = step.q, step.k, step.v
    other_cache = torch.zeros_like(device_cache)
    targets = torch.cat(moved.tables).tolist()
    made.copy_blocks(host_cache, other_cache, list(enumerate(targets)))
    moved.check(moved.run(made, other_cache))
    # Two blocks trade places through an unused third one: each pair sees the copies before it.
    first, second, spare = blocks[0], blocks[1], step.num_blocks - 1
    made.copy_blocks(device_cache, device_cache, [(first, spare), (second, first)])
    made.copy_blocks(device_cache, device_cache, [(spare, second), (first, spare)])
    step.tables = [_renamed(table, {first: second, second: spare}) for table in step.tables]
    step.check(step.run(made, device_cache))


def check_graphs(backend: BackendClass, spec: AttentionSpec) -> None:
    """The backend declares whether decodes can be captured, and a captured step is right.

    The step has at most the number of sequences of the graph, and writes nothing else to the
    cache. On a GPU, a real graph is captured.
    """
    made = backend(spec)
    graphs = getattr(made, "graphs", None)
    known = get_args(GraphSupport)
    assert graphs in known, f"graphs must be one of {', '.join(map(repr, known))}, not {graphs!r}"
    if not is_graphable(made):
        return
    steps = [
        Step(spec, spans, len(spans), seed=seed)
        for seed, spans in enumerate((_DECODES, _DECODES[2:5], _DECODES[6:], _DECODES[:1]))
    ]
    num_blocks = max(step.num_blocks for step in steps)
    shape = made.kv_cache_shape(num_blocks)
    cache = torch.zeros(shape, dtype=spec.cache_dtype, device=spec.device)
    made.begin_capture(max_num_seqs=len(_DECODES), max_model_len=_MAX_MODEL_LEN)
    large, small = (CapturedStep(made, spec, cache, n) for n in (len(_DECODES), 3))
    for graph, step in ((large, steps[0]), (small, steps[1]), (large, steps[2]), (small, steps[3])):
        step.num_blocks = num_blocks
        cache.copy_(step.new_cache(made))
        expected_cache = cache.clone()
        step.run(made, expected_cache)
        step.check(graph.run(step))
        assert torch.equal(movable(cache), movable(expected_cache)), (
            f"a graph of decodes writes another cache than the same step without it: {step.spans}"
        )


def _renamed(table: torch.Tensor, names: Mapping[int, int]) -> torch.Tensor:
    return torch.tensor([names.get(block, block) for block in table.tolist()])


def _check_each(backend: BackendClass, specs: Sequence[AttentionSpec]) -> None:
    """Check a mixed step of each spec that is not refused. Raises Refused if all are refused."""
    reasons = [reasons_against(backend, spec) for spec in specs]
    if all(reasons):
        raise Refused("; ".join(reasons[0]))
    for spec, against in zip(specs, reasons, strict=True):
        if not against:
            check_step(backend, spec, "mixed")


def _odd_specs(device: torch.device) -> list[AttentionSpec]:
    usual = AttentionSpec(
        num_heads=8,
        num_kv_heads=2,
        head_size=64,
        block_size=16,
        dtype=torch.bfloat16,
        device=device,
        scale=0.125,
    )
    oddities: Mapping[str, Sequence[Any]] = {
        "num_kv_heads": (1, 3, 5, 8, 16),
        "num_heads": (1, 2, 7, 512),
        "head_size": (1, 7, 40, 72, 80, 256, 1000),
        "block_size": (1, 3, 48, 1000),
        "dtype": (torch.float64, torch.int8, torch.float8_e4m3fn, torch.float16, torch.float32),
        "device": (torch.device("meta"), torch.device("cpu"), torch.device("cuda")),
        "scale": (0.0, -1.0, math.inf),
        "sliding_window": (1, 10**9),
        "logits_soft_cap": (0.01, 50.0),
        "computes_decodes": (False,),
        "kv_cache_layout": tuple(KVLayout),
        "kv_cache_dtype": FP8_DTYPES,
    }
    odd = [replace(usual, **{name: v}) for name, values in oddities.items() for v in values]
    return [usual, *odd]
