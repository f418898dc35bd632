"""A worst-case step on the GPU, to know what activations take before the KV cache gets the rest."""

from __future__ import annotations

import torch

from ..core.config import EngineConfig
from .models.decoder import Decoder


@torch.inference_mode()
def measure_activations(decoder: Decoder, config: EngineConfig, device: torch.device) -> int:
    """Bytes that are left for the KV cache, of gpu_memory_utilization times the GPU's memory.

    Runs `max_num_batched_tokens` tokens through the decoder, attention left out, and the logits of
    `max_num_seqs` rows with what sampling allocates for them.
    """
    num_tokens = min(config.token_budget(device.type), decoder.config.max_position_embeddings)
    token_ids_t = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    positions_t = torch.arange(num_tokens, device=device)
    torch.cuda.reset_peak_memory_stats(device)
    hidden_te = decoder.forward(
        token_ids_t, positions_t, lambda layer, q, k, v: torch.empty_like(q)
    )
    logits_rv = decoder.compute_logits(hidden_te[: config.max_num_seqs])
    (logits_rv / 1.0).softmax(dim=1).cumsum(dim=1, dtype=torch.float64)
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    peak_growth = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    reserved = torch.cuda.memory_reserved(device)
    del hidden_te, logits_rv
    torch.cuda.empty_cache()
    used_by_others = total - free - reserved
    allocated = torch.cuda.memory_allocated(device)
    return int(total * config.gpu_memory_utilization) - used_by_others - allocated - peak_growth
