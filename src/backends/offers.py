"""The plugins that offer one class each: their classes are imported when an engine chooses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from ..core import kinds
from ..core.contract.hookspecs import hookimpl
from ..core.contract.registry import Registry
from ..core.kinds import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class OneClass:
    """Offers one class, which is imported when an engine chooses it."""

    TOKENMILL_API: ClassVar = (1, 1)

    kind: Kind[Any]
    name: str
    place: str
    """Module, below this package, and name of the class: "module:Class"."""
    doc: str
    aliases: Sequence[str] = ()

    @hookimpl
    def register(self, registry: Registry) -> None:
        def find_class() -> Any:
            module, _, name = self.place.partition(":")
            return getattr(import_module(f"{__package__}.{module}"), name)

        find_class.__doc__ = self.doc
        registry.offer(self.kind, self.name, find_class, aliases=self.aliases)


torch_attention = OneClass(
    kind=kinds.ATTENTION_BACKEND,
    name="torch",
    place="attention.torch.backend:TorchAttention",
    doc="Plain torch operations on CPU and GPU: the readable reference for all other backends.",
    aliases=("TORCH_SDPA",),
)
cpu_attention = OneClass(
    kind=kinds.ATTENTION_BACKEND,
    name="cpu",
    place="cpu.attention:CPUAttention",
    doc="Native kernels for CPUs, which read the paged cache in place.",
)
cuda_paged = OneClass(
    kind=kinds.ATTENTION_BACKEND,
    name="cuda-paged",
    place="cuda.attention:CudaPagedAttention",
    doc="Our own CUDA kernels for decodes, prompts and chunks; nvcc builds them at the first use.",
)
flash_attention = OneClass(
    kind=kinds.ATTENTION_BACKEND,
    name="flash-attn",
    place="attention.flash.backend:FlashAttention",
    doc="FlashAttention 2, 3 or 4, whichever is installed and fits the GPU best.",
    aliases=("FLASH_ATTN",),
)
xformers = OneClass(
    kind=kinds.ATTENTION_BACKEND,
    name="xformers",
    place="attention.xformers.backend:XformersAttention",
    doc="xformers' kernels for NVIDIA GPUs; without copies if --block-size is a multiple of 64.",
    aliases=("XFORMERS",),
)
triton_attention = OneClass(
    kind=kinds.ATTENTION_BACKEND,
    name="triton",
    place="attention.triton.backend:TritonAttention",
    doc="Paged kernels in Triton, for NVIDIA GPUs; they need the package triton and a C compiler.",
    aliases=("TRITON_ATTN",),
)
torch_linear = OneClass(
    kind=kinds.LINEAR_BACKEND,
    name="torch",
    place="linear.torch:TorchLinear",
    doc="Plain torch operations on CPU and GPU, in floating point: the reference.",
)
native_models = OneClass(
    kind=kinds.MODEL_IMPL,
    name="native",
    place="models.native.implementation:NativeModels",
    doc="One decoder for the most common architectures, from safetensors and GGUF files.",
)
thinking_budget = OneClass(
    kind=kinds.LOGITS_PROCESSOR,
    name="thinking-budget",
    place="sampling.processing.thinking_budget:ThinkingBudget",
    doc="Ends a reasoning that has used up its tokens: thinking_token_budget in chats.",
)
no_repeat_ngram = OneClass(
    kind=kinds.LOGITS_PROCESSOR,
    name="no-repeat-ngram",
    place="sampling.processing.no_repeat_ngram:NoRepeatNGram",
    doc='Forbids n-grams that the answer has already: vllm_xargs {"ngram_size": 4}.',
)
