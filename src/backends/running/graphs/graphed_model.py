"""Runs steps of decodes as captured graphs: one call launches all kernels of a model.

On a GPU, a small step spends most of its time with the launches of some hundred kernels. A graph is
captured for a number of sequences, and replayed for that number or fewer.

Shape suffixes: t tokens of the step, s sequences of the largest graph, e hidden size, v vocabulary,
r rows that get logits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from ...attention.base import GraphableBackend
from ...models.base import Model
from ...sampling.ops import SamplingOps
from ...state.input_batch import InputBatch
from ..layered_model import LayeredModel

Replay = Callable[[], None]


class Capture(Protocol):
    """Captures graphs that share their memory: only one of them runs at a time."""

    def __call__(self, run: Callable[[], None]) -> Replay:
        """Return a call that repeats all work of `run` on the device, on the same memory."""
        ...


class CUDACapture:
    """Captures CUDA graphs. Capture the largest first: the others then fit into its memory."""

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, run: Callable[[], None]) -> Replay:
        now = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            run()  # compiles kernels and allocates workspaces, which a capture must not
        now.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile.
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            run()
        return graph.replay


class GraphedModel:
    """A StepModel that replays graphs for steps of decodes, and runs other steps layer by layer."""

    def __init__(
        self,
        plain: LayeredModel,
        decoder: Model,
        attention: GraphableBackend,
        sizes: Sequence[int],
        max_model_len: int,
        capture: Capture,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Capture a graph for each of `sizes`, which are ascending. The KV cache is empty."""
        self._plain, self._attention, self._sizes = plain, attention, tuple(sizes)
        self.sampling: SamplingOps = plain.sampling
        largest = sizes[-1]
        self._token_ids_s = torch.zeros(largest, dtype=torch.int64, device=device)
        self._positions_s = torch.zeros_like(self._token_ids_s)
        shape = largest, decoder.config.hidden_size
        self._hidden_se = torch.zeros(shape, dtype=dtype, device=device)
        vocab_size = decoder.compute_logits(self._hidden_se[:1]).shape[1]
        self._logits_sv = torch.zeros((largest, vocab_size), device=device)
        self._hidden_re = self._hidden_se
        self._metadata: list[Any] = []
        """Graphs use memory in it."""
        attention.begin_capture(largest, max_model_len)
        self._replays = {
            size: self._capture(size, decoder, capture) for size in reversed(self._sizes)
        }

    def logits(self, batch: InputBatch) -> torch.Tensor:
        used = batch.attention.num_decodes
        if used < len(batch.attention.query_lens_host) or used > self._sizes[-1]:
            logits_rv = self._plain.logits(batch)
            self._hidden_re = self._plain.hidden_states()
            return logits_rv
        size = self._sizes[bisect_left(self._sizes, used)]
        self._token_ids_s[:used].copy_(batch.token_ids_t)
        self._positions_s[:used].copy_(batch.positions_t)
        self._attention.prepare_replay(batch.attention, size)
        self._replays[size]()
        if len(batch.sampled) == used and not batch.scored:
            self._hidden_re = self._hidden_se[:used]
            return self._logits_sv[:used]
        self._hidden_re = self._hidden_se.index_select(0, batch.sampled_rows_r)
        return self._logits_sv.index_select(0, batch.sampled_rows_r)

    def hidden_states(self) -> torch.Tensor:
        return self._hidden_re

    def _capture(self, size: int, decoder: Model, capture: Capture) -> Replay:
        metadata = self._attention.prepare_capture(size)

        def run() -> None:
            hidden_te = self._plain.compute(
                self._token_ids_s[:size], self._positions_s[:size], metadata
            )
            # In memory of its own, so that the graphs can share all other memory.
            self._hidden_se[:size].copy_(hidden_te)
            self._logits_sv[:size].copy_(decoder.compute_logits(hidden_te))

        self._metadata.append(metadata)
        return capture(run)
