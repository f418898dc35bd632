"""Describes a decoder to the native library: its features, and where its weights are."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch

from ..attention.base import AttentionBackend
from ..linear.base import Projection
from ..linear.torch import Linear
from ..models.base import Model
from ..models.native.decoder import Decoder, DecoderLayer, RMSNorm
from ..models.native.feed_forward import ClampedGate, Experts, GatedNetwork
from ..models.pipeline_parallel import StagedDecoder
from ..models.tensor_parallel import Gathered, Reduced
from .attention import CPUAttention
from .embedding import describe_embedding
from .native.structures import (
    AttentionSpecStruct,
    DecoderLayerStruct,
    DecoderModelStruct,
    ExpertsSpecStruct,
    ExpertStruct,
)
from .packed_weights import PackedLinear, WeightArena, pack_linear
from .projections import NativeLinear
from .ranks import NativeRanks

_LANES = 16
"""The library rotates multiples of this number of elements, and applies gates to multiples."""
_ROUTERS = (torch.bfloat16, torch.float32)


def reasons_against(model: Model, attentions: Sequence[AttentionBackend]) -> list[str]:
    """Return every reason why the library cannot compute a whole step of a model, on all ranks.

    `attentions` has the attention of every layer.
    """
    decoder = decoder_of(model)
    if decoder is None:
        return ["it is no native decoder"]
    names = {one.name for one in attentions if not isinstance(one, CPUAttention)}
    if names:
        return [f"attention backend {names.pop()!r} computes one layer"]
    own, head = _own_reasons(decoder), decoder.lm_head
    if isinstance(head, Gathered) and isinstance(head.ranks, NativeRanks):
        # All ranks or none: layer by layer, a rank exchanges its parts in other portions. Ranks may
        # differ, because they may have other numbers of columns of experts.
        count = torch.tensor([float(not own)])
        head.ranks.sum(count)
        if not own and int(count) < int(head.ranks.struct.size):
            return ["another rank cannot"]
    return own


def decoder_of(model: Model) -> Decoder | None:
    """Return a native decoder, whole or of a stage; None for other models."""
    own = model.decoder if isinstance(model, StagedDecoder) else model
    return own if isinstance(own, Decoder) else None


def _own_reasons(decoder: Decoder) -> list[str]:
    config, head, reasons = decoder.config, decoder.lm_head, []
    sizes = {"rotated elements of a head": config.rotary_size or 0}
    if config.experts is not None and config.experts.swiglu_limit is not None:
        sizes["columns of a clamped gate"] = config.experts.intermediate_size
    for what, size in sizes.items():
        if size % _LANES:
            reasons.append(f"it has {size} {what}, which is no multiple of {_LANES}")
    if isinstance(head, Gathered) and not _has_room(head, config.hidden_size):
        reasons.append("its ranks share too little memory")
    if describe_embedding(decoder.embedding) is None:
        reasons.append("its embedding is not native")
    if not all(isinstance(product, NativeLinear) for product in _products_of(decoder)):
        reasons.append("a product is not native")
    routers = [one.router for one in _experts_of(decoder)]
    if not all(isinstance(one, Linear) and one.weight.dtype in _ROUTERS for one in routers):
        reasons.append("a router is not in bfloat16 or float32")
    sums = [one.sum_over_ranks for one in _experts_of(decoder)]
    sums += [layer.whole_qk_norm.sum_over_ranks for layer in decoder.layers if layer.whole_qk_norm]
    if any((one is not None) is not isinstance(head, Gathered) for one in sums):
        reasons.append("not all of its parts are divided among ranks")
    return reasons


def _products_of(decoder: Decoder) -> Iterator[Projection]:
    if decoder.config.has_head:
        yield _part_of(decoder.lm_head)
    for layer in decoder.layers:
        yield from (layer.qkv, _part_of(layer.attention_output))
        for network in _networks_of(layer):
            yield from (_product_of(network.gate_up), _part_of(network.down))


def _experts_of(decoder: Decoder) -> list[Experts]:
    networks = [layer.feed_forward for layer in decoder.layers]
    return [one for one in networks if isinstance(one, Experts)]


class DecoderDescription:
    """The structure that describes a decoder, and what it points to."""

    def __init__(
        self, decoder: Decoder, attention: AttentionSpecStruct, plans: Sequence[int]
    ) -> None:
        """`plans` has the index of each layer's attention plan. The decoder must be native."""
        self._decoder = decoder
        self._arena = WeightArena()
        self._kept: list[object] = []
        """Keeps the objects alive that the structures point to."""
        config = decoder.config
        self._tables = [
            (self._floats(table.cos_pc), self._floats(table.sin_pc))
            for table in decoder.rotary_tables
        ]
        layers = (DecoderLayerStruct * len(decoder.layers))()
        for struct, layer, plan in zip(layers, decoder.layers, plans, strict=True):
            self._describe(layer, plan, struct)
        self.struct = DecoderModelStruct(
            spec=attention,
            experts=_experts_spec(decoder),
            num_layers=len(decoder.layers),
            layers=layers,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            eps=config.rms_norm_eps,
            float32_norms=config.features.float32_norms,
            rotary_size=config.rotary_size or config.head_size,
            embedding_scale=decoder.embedding_scale,
        )
        if config.has_embedding:
            embedding = describe_embedding(decoder.embedding)
            assert embedding is not None
            self.struct.embedding = embedding
        if config.has_head:
            self.struct.norm = self._floats(decoder.norm.weight)
            self.struct.head = self._packed(_part_of(decoder.lm_head))[0]
        if isinstance(decoder.lm_head, Gathered):
            self._describe_ranks(decoder.lm_head)
        norm = decoder.layers[0].whole_qk_norm
        if norm is not None and norm.sizes is not None:
            self.struct.whole_q_size, self.struct.whole_k_size = norm.sizes

    def _describe_ranks(self, head: Gathered) -> None:
        assert isinstance(head.ranks, NativeRanks)
        self._kept.append(head.ranks)
        self.struct.ranks = ctypes.pointer(head.ranks.struct)
        self.struct.first_logits = (ctypes.c_int64 * len(head.first_logits))(*head.first_logits)

    def _describe(self, layer: DecoderLayer, plan: int, struct: DecoderLayerStruct) -> None:
        struct.plan = plan
        struct.input_norm = self._norm(layer.input_norm)
        struct.attention_output_norm = self._norm(layer.attention_output_norm)
        struct.post_attention_norm = self._norm(layer.post_attention_norm)
        struct.feed_forward_output_norm = self._norm(layer.feed_forward_output_norm)
        if layer.rotary_table is not None:
            struct.cos, struct.sin = self._tables[layer.rotary_table]
        if layer.sinks_h is not None:
            struct.sinks = self._floats(layer.sinks_h)
        self._describe_norms_of_heads(layer, struct)
        struct.qkv, struct.qkv_bias = self._packed(layer.qkv)
        struct.attention_output, struct.attention_output_bias = self._packed(
            _part_of(layer.attention_output)
        )
        if isinstance(layer.feed_forward, Experts):
            self._describe_experts(layer.feed_forward, struct)
        else:
            self._describe_network(layer.feed_forward, struct)

    def _describe_norms_of_heads(self, layer: DecoderLayer, struct: DecoderLayerStruct) -> None:
        if layer.qk_norm is not None:
            struct.q_norm = self._floats(layer.qk_norm.weight[0])
            struct.k_norm = self._floats(layer.qk_norm.weight[self._decoder.config.num_heads])
        elif layer.whole_qk_norm is not None:
            struct.whole_q_norm = self._norm(layer.whole_qk_norm.q)
            struct.whole_k_norm = self._norm(layer.whole_qk_norm.k)

    def _describe_experts(self, experts: Experts, struct: DecoderLayerStruct) -> None:
        router = experts.router
        assert isinstance(router, Linear)
        weight = router.weight
        struct.router = self._pointer(pack_linear(weight, dtype=weight.dtype, arena=self._arena))
        if router.bias is not None:
            struct.router_bias = self._floats(router.bias)
        struct.experts = (ExpertStruct * experts.config.num_experts)()
        for index, network in zip(experts.config.local, experts.networks, strict=True):
            self._describe_network(network, struct.experts[index])

    def _describe_network(
        self, network: GatedNetwork, struct: DecoderLayerStruct | ExpertStruct
    ) -> None:
        struct.gate_up, struct.gate_up_bias = self._packed(_product_of(network.gate_up))
        struct.down, struct.down_bias = self._packed(_part_of(network.down))

    def _packed(self, linear: Projection) -> tuple[object, int | None]:
        """Pointer to a product's weights, and address of its bias."""
        assert isinstance(linear, NativeLinear)
        bias = None if linear.bias is None else linear.bias.data_ptr()
        return self._pointer(linear.packed), bias

    def _pointer(self, packed: PackedLinear) -> object:
        self._kept.append(packed)
        return ctypes.pointer(packed.struct)

    def _norm(self, norm: RMSNorm | None) -> int | None:
        return None if norm is None else self._floats(norm.weight)

    def _floats(self, tensor: torch.Tensor) -> int:
        """Address of a float32 copy of the tensor, which lives as long as this object."""
        kept = tensor.float().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()


def _networks_of(layer: DecoderLayer) -> Sequence[GatedNetwork]:
    own = layer.feed_forward
    return own.networks if isinstance(own, Experts) else [own]


def _has_room(head: Gathered, hidden_size: int) -> bool:
    """Whether ranks can exchange the partial sums and the logits of a token at once."""
    if not isinstance(head.ranks, NativeRanks):
        return False
    widest = max(end - first for first, end in pairwise(head.first_logits))
    return max(hidden_size, widest) <= int(head.ranks.struct.slot_floats)


def _part_of(product: Projection) -> Projection:
    """This rank's part of a product whose parts the library exchanges by itself."""
    if isinstance(product, Reduced | Gathered) and isinstance(product.ranks, NativeRanks):
        return product.part
    return product


def _product_of(gate_up: Projection) -> Projection:
    """The product before a gate that the library applies by itself."""
    return gate_up.both if isinstance(gate_up, ClampedGate) else gate_up


def _experts_spec(decoder: Decoder) -> ExpertsSpecStruct:
    config = decoder.config.experts
    if config is None:
        return ExpertsSpecStruct()
    (gate, *_) = [network.gate_up for network in _networks_of(decoder.layers[0])]
    return ExpertsSpecStruct(
        num_experts=config.num_experts,
        num_active=config.num_active,
        intermediate_size=config.intermediate_size,
        normalizes_shares=config.normalizes_shares,
        gate_limit=config.swiglu_limit or 0.0,
        gate_alpha=config.swiglu_alpha,
        is_interleaved=isinstance(gate, ClampedGate) and gate.is_interleaved,
    )
