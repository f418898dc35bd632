"""Chooses how the layers of a model are computed: all of them in one call, or layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core.log import get_logger
from ...attention.base import AttentionBackend
from ...attention.mixed import MixedAttention
from ...models.base import Model
from ...state.kv_cache import KVCache

if TYPE_CHECKING:
    from ...cpu.decoder_call import DecoderCall

log = get_logger("model")


def whole_step(model: Model, attention: AttentionBackend, kv_cache: KVCache) -> DecoderCall | None:
    """Return the call that computes a whole step of a model, or of a stage of one.

    None: the model runs layer by layer, with any attention backend; the log says why.
    """
    if kv_cache.device.type != "cpu":
        return None
    from ...cpu.decoder_call import DecoderCall
    from ...cpu.decoder_description import reasons_against

    layers = [attention] * len(kv_cache.layers)
    if isinstance(attention, MixedAttention):
        layers = attention.layers
    reasons = reasons_against(model, layers)
    if reasons:
        log.info("model_runs_layer_by_layer", reasons=reasons)
        return None
    return DecoderCall(model, layers, kv_cache)
