"""Steps in captured graphs. On a CPU, the same call on the same memory replaces the graph."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ....backends.attention.base import AttentionSpec, GraphableBackend
from .steps import Step

_WARM_UPS = 3
"""Calls before the capture, so that compiling and tuning at first use are not captured."""


class CapturedStep:
    """`forward` of one layer for a number of decodes, captured once and replayed for any step."""

    def __init__(
        self,
        backend: GraphableBackend,
        spec: AttentionSpec,
        kv_cache: torch.Tensor,
        num_seqs: int,
    ) -> None:
        self._backend, self._num_seqs = backend, num_seqs
        metadata = self._metadata = backend.prepare_capture(num_seqs)  # lives as long as the graph
        self._inputs = tuple(
            torch.zeros(num_seqs, heads, spec.head_size, dtype=spec.dtype, device=spec.device)
            for heads in (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
        )
        self._out_thd = torch.zeros_like(self._inputs[0])
        q_thd, k_tkd, v_tkd = self._inputs

        def forward() -> None:
            backend.forward(0, q_thd, k_tkd, v_tkd, kv_cache, metadata, self._out_thd)

        self._replay = capture(forward) if spec.device.type == "cuda" else forward

    def run(self, step: Step) -> torch.Tensor:
        """The output for the step's sequences [t, h, d].

        If the step has fewer sequences than the graph, the other inputs are NaN.
        """
        num_used = len(step.spans)
        for memory, given in zip(self._inputs, step.inputs(), strict=True):
            memory.fill_(torch.nan)
            memory[:num_used].copy_(given)
        self._out_thd.fill_(torch.nan)
        self._backend.prepare_replay(step.batch, self._num_seqs)
        self._replay()
        return self._out_thd[:num_used].clone()


def capture(compute: Callable[[], None]) -> Callable[[], None]:
    """Capture a call's work on the GPU as a graph; returns a function that replays it."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            compute()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compute()
    replay: Callable[[], None] = graph.replay
    return replay
