"""The sizes of a Pixtral tower and of Mistral 3's projector, read from a directory's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....core.errors import ConfigError
from ...linear.base import ACTIVATIONS
from ...weights.config.fields import Fields
from ..pixel_scale import CLIP_MEAN, CLIP_STD, INDEX_BYTES, PixelScale, read_pixel_scale

_DEFAULTS = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 16,
}
"""transformers' values of sizes that config.json may lack."""
_ROTARY = ("axial", "default")
"""The names of the only supported rotary embedding, in newer and in older files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PixtralConfig:
    """A vision transformer for images of any shape, and the projection into the text model."""

    num_layers: int
    """Layers up to the one whose result is projected. Later ones are not loaded."""
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    """The side of a patch, in pixels."""
    rope_theta: float
    activation: str
    """The activation in the layers, one of ACTIVATIONS."""
    merge_size: int
    """The side of the square of patches that becomes one row, in patches."""
    projector_norm_eps: float
    projector_activation: str
    """One of ACTIVATIONS."""
    projector_bias: bool
    text_hidden_size: int
    image_token_id: int
    """The token that rows replace."""
    shown_token_id: int | None = None
    """See MediaInfo."""
    scale: PixelScale

    def run_bytes(self, height: int, width: int, itemsize: int) -> int:
        """See TowerPlan. The maximum of three: pixels become patches, attention, and feed-forward.

        Attention holds the hidden states, q, k and v, and q and k three times during the rotation.
        """
        e, i = self.hidden_size, self.intermediate_size
        entry = 3 * height * width * (INDEX_BYTES + 2 * itemsize)
        widest = max(10 * e, 2 * e + 3 * i)
        num_patches = (height // self.patch_size) * (width // self.patch_size)
        return max(entry, num_patches * widest * itemsize)


def read_pixtral_config(fields: Mapping[str, Any], source: str) -> PixtralConfig:
    """Read the sizes; `fields` are those of `image_fields`. Raises ConfigError for values that are
    missing, or that cannot be computed."""
    whole = Fields(fields, source)
    text, vision = whole.part("text_config"), whole.part("vision_config")
    if text is None or vision is None:
        raise ConfigError(f"{source} needs text_config and vision_config")
    sizes = {name: vision.integer(name, default) for name, default in _DEFAULTS.items()}
    merge_size = whole.integer("spatial_merge_size", 2)
    if vision.integer("num_channels", 3) != 3:
        raise ConfigError(f"{vision.source}: only images with 3 channels are supported")
    if min(*sizes.values(), merge_size) < 1:
        raise ConfigError(f"{vision.source}: sizes must be positive")
    if sizes["hidden_size"] % (4 * sizes["num_attention_heads"]):
        raise ConfigError(
            f"{vision.source}: the size of a head, hidden_size / num_attention_heads, must be a "
            "multiple of 4"
        )
    return PixtralConfig(
        num_layers=_num_layers(whole, sizes["num_hidden_layers"]),
        hidden_size=sizes["hidden_size"],
        intermediate_size=sizes["intermediate_size"],
        num_heads=sizes["num_attention_heads"],
        patch_size=sizes["patch_size"],
        rope_theta=_rope_theta(vision),
        activation=_activation(vision, "hidden_act"),
        merge_size=merge_size,
        projector_norm_eps=text.number("rms_norm_eps", 1e-6),
        projector_activation=_activation(whole, "projector_hidden_act"),
        projector_bias=whole.flag("multimodal_projector_bias", False),
        text_hidden_size=text.integer("hidden_size"),
        image_token_id=whole.integer("image_token_index", whole.integer("image_token_id", 10)),
        scale=read_pixel_scale(whole, CLIP_MEAN, CLIP_STD),
    )


def _num_layers(fields: Fields, num_layers: int) -> int:
    """The number of layers up to the one whose result is projected: -1 is the last one, and 0 the
    input of the first."""
    chosen = fields.get("vision_feature_layer")
    if isinstance(chosen, list) and len(chosen) == 1:
        [chosen] = chosen
    layer = -1 if chosen is None else chosen
    if type(layer) is not int or not -num_layers - 1 <= layer <= num_layers:
        raise ConfigError(
            f"vision_feature_layer in {fields.source} must be one of the {num_layers} layers, "
            f"got {chosen!r:.50}"
        )
    return layer if layer >= 0 else num_layers + 1 + layer


def _rope_theta(vision: Fields) -> float:
    rotary = vision.part("rope_parameters") or vision  # older files have no such part
    kind = rotary.text("rope_type", _ROTARY[0])
    if kind not in _ROTARY:
        raise ConfigError(f"{rotary.source}: rope_type {kind!r:.50} is not supported")
    theta = rotary.number("rope_theta", 10_000.0)
    if theta <= 0:
        raise ConfigError(f"{rotary.source}: rope_theta must be above 0, got {theta}")
    return theta


def _activation(fields: Fields, name: str) -> str:
    activation = fields.text(name, "gelu")
    if activation not in ACTIVATIONS:
        raise ConfigError(f"{fields.source}: {name} {activation!r:.50} is not supported")
    return activation
