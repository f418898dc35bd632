"""Checks images at the start: compares a small prompt that has an image with transformers.

Shape suffixes: t tokens, e hidden size.
"""

from __future__ import annotations

import copy
import time
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F

from ....core.config import EngineConfig
from ....core.errors import ConfigError
from ....core.log import get_logger
from ....core.requests.media import MediaPlace
from ...models.native.decoder import Decoder
from ...models.pipeline_parallel import StagedDecoder
from ...state.rotary_positions import rotary_positions
from ...vision.reading import Vision
from ...vision.wrapped.tower import WrappedTower
from ...weights.checkpoint import Checkpoint
from ...weights.checkpoint_decorator import as_stored
from ...weights.config.fields import one_line
from ...weights.huggingface.checkpoint import SafetensorsCheckpoint
from ..parts.model_parts import ModelParts
from .model_check import largest_error

log = get_logger("model")

_BYTES = 512 << 20
"""Maximum size of the weights of all layers that are compared. At least one layer is compared."""
_ROWS, _COLUMNS = 2, 3
"""Rows and columns of the image's tokens. They differ, so that swapping them is noticed."""
_NUM_TEXT_TOKENS = 5
"""Number of text tokens before the image, and of those after it."""


def check_images(
    parts: ModelParts, checkpoint: Checkpoint, vision: Vision, config: EngineConfig
) -> None:
    """Compare hidden states with those of transformers, if transformers computes the tower.

    All ranks of a stage must call this together. The cost is bounded: some layers of 16 tokens.
    Raises ConfigError if the hidden states differ.
    """
    stored = as_stored(checkpoint)
    if not isinstance(vision.tower, WrappedTower) or not isinstance(stored, SafetensorsCheckpoint):
        return
    name = "model.layers.0.mlp.up_proj.weight"
    reason = None if isinstance(checkpoint.stored(name).format, torch.dtype) else "packed weights"
    if config.skip_model_check or reason is not None:
        log.warning("image_check_skipped", reason=reason or "--skip-model-check")
        return
    started = time.monotonic()
    try:
        error, num_layers = _compare(parts, stored, vision, vision.tower)
    except ConfigError:
        raise
    except Exception as failure:  # any model of another library
        raise _refusal(f"a prompt with an image fails: {one_line(failure)}") from failure
    if not error <= largest_error(parts.spec.dtype):  # NaN, too
        raise _refusal(
            f"a prompt with an image does not have transformers' hidden states (error {error:.2g})"
        )
    seconds = round(time.monotonic() - started, 1)
    log.info("images_checked", seconds=seconds, layers=num_layers, error=float(f"{error:.1g}"))


def _refusal(reason: str) -> ConfigError:
    return ConfigError(
        f"{reason}. Images of this model are not supported: --language-model-only serves text, and "
        "--skip-model-check images, too"
    )


@torch.inference_mode()
def _compare(
    parts: ModelParts, stored: SafetensorsCheckpoint, vision: Vision, tower: WrappedTower
) -> tuple[float, int]:
    """Return the largest error of a layer, as a fraction of its largest value, and the number of
    compared layers. Each layer gets transformers' hidden states, so that errors do not add up."""
    from ...vision.wrapped.first_layers import compute_first_layers

    own = parts.decoder
    decoder = own.decoder if isinstance(own, StagedDecoder) else cast(Decoder, own)
    sizes = [
        stored.stored(name).num_bytes
        for name in stored.tensor_names()
        if name.startswith("model.layers.0.")
    ]
    num_layers = min(len(decoder.layers), max(1, _BYTES // max(sum(sizes), 1)))
    num_rows, unit = _ROWS * _COLUMNS, tower.unit
    pixels = torch.arange(3 * num_rows * unit**2).mul(7919).remainder(256).to(torch.uint8)
    rows_te = tower.encode(pixels.view(1, _ROWS * unit, _COLUMNS * unit, 3))[0]
    place = MediaPlace(
        digest=b"", start=_NUM_TEXT_TOKENS, num_tokens=num_rows, grid=(1, _ROWS, _COLUMNS)
    )
    num_tokens, end = 2 * _NUM_TEXT_TOKENS + num_rows, place.start + num_rows
    device = parts.spec.device
    ids_t = torch.arange(num_tokens, device=device).mul(7).add(1) % decoder.config.vocab_size
    hidden_te = decoder.embed(ids_t)
    hidden_te[place.start : end] = rows_te
    is_image_t = torch.zeros(num_tokens, dtype=torch.bool, device=device)
    is_image_t[place.start : end] = True
    patches = unit // tower.patch_size
    expected = compute_first_layers(
        stored.fields,
        stored.tensor,
        num_layers,
        hidden_te,
        is_image_t,
        (_ROWS * patches, _COLUMNS * patches),
    )
    turns_3t = torch.from_numpy(rotary_positions([place], 0, num_tokens)).to(device)
    errors = []
    for index, (before_te, after_te) in enumerate(pairwise([hidden_te, *expected])):
        one = copy.copy(decoder)
        one.layers = decoder.layers[index : index + 1]
        found_te = one.compute_layers(before_te, turns_3t, _attend)
        difference = (found_te.float() - after_te.float()).abs().max().item()
        errors.append(difference / after_te.float().abs().max().item())
    return max(errors), num_layers


def _attend(
    layer: int, q_thd: torch.Tensor, k_tkd: torch.Tensor, v_tkd: torch.Tensor
) -> torch.Tensor:
    """Attention within one prompt, without a KV cache."""
    q, k, v = (one.transpose(0, 1)[None] for one in (q_thd, k_tkd, v_tkd))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out[0].transpose(0, 1).contiguous()
