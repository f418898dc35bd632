"""Decides whether steps of decodes are captured in graphs, and checks each graph before it is used.

Shape suffixes: s sequences of the largest graph, v vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ....core.config import EngineConfig
from ....core.errors import describe
from ....core.interfaces import Progress
from ....core.log import get_logger
from ....core.plan import Grant
from ...attention.base import AttentionBackend, is_graphable
from ...models.base import Model
from ...models.native.decoder import Decoder
from ...models.native.feed_forward import GatedNetwork
from ...state.input_batch import InputBatch, build_input_batch
from ...state.kv_cache import KVCache
from ..layered_model import LayeredModel
from ..parts.model_parts import ModelParts
from .graphed_model import Capture, CUDACapture, GraphedModel

log = get_logger("model")
STAGE = "capturing CUDA graphs"
_BYTES_PER_GRAPH = 4 << 20
"""The approximate memory of a graph in the driver."""
_TOLERANCE = {torch.float32: 1e-3}
_TOLERANCE_OF_HALF = 0.05
"""Maximum error of a logit, relative to the largest one. Splits of contexts differ, so sums do."""

_EFFECT = "steps run without graphs, which is slower"
_MAX_PADDED_TOKENS = 1 << 16
"""Maximum number of sequences in a graph times the length of the longest context, for backends
whose graphs read that much."""
_PROBED_TOKENS = 64
"""Every vocabulary has more."""
_PROBED_LENGTH = 7
"""Tokens of a context when graphs are checked; every block has more slots."""


def graph_sizes(decoder: Model, attention: AttentionBackend, config: EngineConfig) -> list[int]:
    """Return the numbers of decodes to capture graphs for; empty if there are to be none."""
    sizes = list(config.capture_sizes)
    if not sizes:
        return []
    reasons = _reasons_against(decoder, attention, config)
    if attention.graphs == "padded decodes":
        max_len = decoder.config.max_position_embeddings
        sizes = [size for size in sizes if size * max_len <= _MAX_PADDED_TOKENS]
        if not sizes:
            reasons.append(
                f"attention backend {attention.name!r} would read {max_len} tokens per request"
            )
    if reasons:
        log.info("no_cuda_graphs", reasons=reasons)
        return []
    return sizes


def graph_bytes(sizes: Sequence[int], vocab_size: int) -> int:
    """Return about how much memory graphs of these sizes need, in addition to other steps."""
    if not sizes:
        return 0
    logits = 3 * 4 * sizes[-1] * vocab_size  # in the graph, as float32, and the result
    return logits + len(sizes) * _BYTES_PER_GRAPH


@torch.inference_mode()
def capture_graphs(
    parts: ModelParts,
    cache: KVCache,
    sizes: Sequence[int],
    progress: Progress,
    capture: Capture | None = None,
) -> GraphedModel | None:
    """Capture graphs of these sizes, and compare each with the layers run one by one.

    The cache is empty before and after. Returns None, and logs an error, if a graph cannot be
    captured or is wrong.
    `capture` captures one graph; None: as a CUDA graph.
    """
    started = time.monotonic()
    progress(STAGE, 0.0)
    decoder, attention, device = parts.decoder, parts.attention, parts.spec.device
    assert is_graphable(attention)
    plain = LayeredModel(decoder, attention, cache)
    try:
        model = GraphedModel(
            plain,
            decoder,
            attention,
            sizes,
            decoder.config.max_position_embeddings,
            capture or CUDACapture(device),
            device,
            parts.spec.dtype,
        )
    except Exception as error:  # a driver or a package may refuse in any way
        log.error("cuda_graphs_not_captured", reason=describe(error), effect=_EFFECT)
        return None
    progress(STAGE, 0.8)
    wrong = _wrong_sizes(model, plain, cache, sizes, _tolerance(parts.spec.dtype))
    for tensor in cache.tensors:
        tensor.zero_()
    progress(STAGE, 1.0)
    if wrong:
        log.error(
            "cuda_graphs_are_wrong",
            sizes=wrong,
            effect=_EFFECT,
            advice="please report it",
        )
        return None
    seconds = round(time.monotonic() - started, 1)
    log.info("cuda_graphs_captured", num_graphs=len(sizes), largest=sizes[-1], seconds=seconds)
    return model


def _reasons_against(
    decoder: Model, attention: AttentionBackend, config: EngineConfig
) -> list[str]:
    reasons = []
    if not is_graphable(attention):
        reasons.append(f"attention backend {attention.name!r} cannot be captured for this model")
    if config.num_ranks > 1:
        reasons.append("the model is divided among several processes")
    if not isinstance(decoder, Decoder):
        reasons.append("transformers' code runs this model")
    elif not all(isinstance(layer.feed_forward, GatedNetwork) for layer in decoder.layers):
        reasons.append("the host needs to know which experts the tokens choose")
    return reasons


def _tolerance(dtype: torch.dtype) -> float:
    return _TOLERANCE.get(dtype, _TOLERANCE_OF_HALF)


def _wrong_sizes(
    model: GraphedModel,
    plain: LayeredModel,
    cache: KVCache,
    sizes: Sequence[int],
    tolerance: float,
) -> list[int]:
    """Return the sizes whose graphs compute other logits. Overwrites blocks of the cache."""
    largest = min(sizes[-1], cache.num_blocks)
    plain.logits(_probe(cache, largest, start=0, num_tokens=_PROBED_LENGTH))
    decodes = _probe(cache, largest, start=_PROBED_LENGTH, num_tokens=1)
    expected_sv = plain.logits(decodes).clone()
    bound = float(expected_sv.abs().max()) * tolerance
    wrong = []
    for size in sizes:
        count = min(largest, size - (size > 1))  # with a row of padding
        batch = _probe(cache, count, start=_PROBED_LENGTH, num_tokens=1)
        error = (model.logits(batch) - expected_sv[:count]).abs().max()
        if not float(error) <= bound:  # NaN is wrong, too
            wrong.append(size)
    return wrong


@dataclass(frozen=True, slots=True)
class _Probe:
    """A sequence with one block."""

    block_tables: Sequence[npt.NDArray[np.int32]]
    seed: int

    def input_token_ids(self, grant: Grant) -> Sequence[int]:
        first = self.seed + grant.start
        return [token % _PROBED_TOKENS for token in range(first, first + grant.num_tokens)]


def _probe(cache: KVCache, count: int, *, start: int, num_tokens: int) -> InputBatch:
    """Return a step in which `count` sequences compute `num_tokens` tokens each."""
    grants = [
        Grant(
            engine_id=str(index),
            start=start,
            num_tokens=num_tokens,
            new_block_ids=(),
            samples=True,
        )
        for index in range(count)
    ]
    sequences = [_Probe([np.array([index], np.int32)], seed=7 * index) for index in range(count)]
    return build_input_batch(grants, sequences, cache.block_size, cache.device)
