"""Logs a warning when a request is preempted, with the settings that would avoid it."""

from __future__ import annotations

from ...plugin import PluginContext, Preempted, Registry, Started, get_logger, hookimpl, kinds

TOKENMILL_API = (1, 1)
_log = get_logger("preemption")


class PreemptionLog:
    """Logs a warning at the 1st, 10th, 100th, ... preemption."""

    def __init__(self, context: PluginContext) -> None:
        self._config = context.config
        self._on_cpu = True
        self._num_blocks = 0
        self._kv_cache_memory = 0
        self._next = 1

    @hookimpl
    def on_started(self, event: Started) -> None:
        info = event.info
        self._on_cpu = info.device == "cpu"
        self._num_blocks = info.num_blocks
        self._kv_cache_memory = info.num_blocks * info.kv_bytes_per_block

    @hookimpl
    def on_preempted(self, event: Preempted) -> None:
        count = event.total_cumulative_preemption_cnt
        if count < self._next:
            return
        self._next = 10 ** len(str(count))
        _log.warning(
            "request_preempted",
            request_id=event.request_id,
            prompt_index=event.prompt_index,
            choice_index=event.choice_index,
            mode=event.mode,
            fell_back=event.fell_back,
            reason="the KV cache is too small for the load; this delays requests",
            lost_tokens=event.num_computed_tokens,
            freed_blocks=event.num_blocks,
            num_gpu_blocks=self._num_blocks,
            max_num_seqs=self._config.max_num_seqs,
            **self._memory(),
            advice=f"raise {self._memory_flags()} for more KV cache, lower --max-num-seqs or "
            "--max-num-batched-tokens, or raise --tensor-parallel-size or --pipeline-parallel-size",
            total_cumulative_preemption_cnt=count,
        )

    def _memory_flags(self) -> str:
        cache = "--kv-cache-memory"
        return cache if self._on_cpu else f"--gpu-memory-utilization or {cache}"

    def _memory(self) -> dict[str, float]:
        if self._on_cpu:
            return {"kv_cache_memory": self._kv_cache_memory}
        return {"gpu_memory_utilization": self._config.gpu_memory_utilization}


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.OBSERVER, "preemption-log", PreemptionLog)
