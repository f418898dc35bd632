"""The suite for implementations of models.

Shape suffixes: t tokens, h query heads, k KV heads, d head size, e hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ....backends.linear.base import LinearSpec
from ....backends.linear.torch import TorchLinear
from ....backends.models.base import SINKS, LoadOptions, Model, ModelImpl, ModelSpec
from ....backends.models.opening import describe
from ....core.interfaces import no_progress
from ....core.members import WRITE_SAMPLE
from ..suites import suite

ImplClass = type[ModelImpl]

_SPEC = LinearSpec(dtype=torch.float32, device=torch.device("cpu"))
_TOLERANCE = 1e-4
UNKNOWN: Mapping[str, Any] = {"architectures": ["NobodyKnowsForCausalLM"], "model_type": "nobody"}


class DenseAttention:
    """Attends over flat batches, one after the other, with the keys and values of each sequence."""

    def __init__(self, model: Model) -> None:
        self._config = model.config
        self._sinks = _sinks_of(model)
        self._kept: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._lengths: Sequence[int] = ()
        self.layers: list[int] = []

    def begin(self, lengths: Sequence[int]) -> None:
        """Begin a batch with these numbers of new tokens, by sequence."""
        self._lengths, self.layers = lengths, []

    def __call__(
        self, layer: int, q_thd: torch.Tensor, k_tkd: torch.Tensor, v_tkd: torch.Tensor
    ) -> torch.Tensor:
        self.layers.append(layer)
        config = self._config
        self._check_shapes(q_thd, k_tkd, v_tkd)
        parts = [torch.split(part, list(self._lengths)) for part in (q_thd, k_tkd, v_tkd)]
        answers = []
        for sequence, (q, k, v) in enumerate(zip(*parts, strict=True)):
            before = self._kept.get((layer, sequence))
            keys, values = (
                (k, v)
                if before is None
                else (
                    torch.cat((before[0], k)),
                    torch.cat((before[1], v)),
                )
            )
            self._kept[layer, sequence] = keys, values
            answers.append(_attend(q, keys, values, config, layer, self._sinks[layer]))
        return torch.cat(answers)

    def _check_shapes(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        config, num_tokens = self._config, sum(self._lengths)
        for name, tensor, heads in (
            ("q", q, config.num_heads),
            ("k", k, config.num_kv_heads),
            ("v", v, config.num_kv_heads),
        ):
            wanted = (num_tokens, heads, config.head_size)
            assert tuple(tensor.shape) == wanted, (
                f"attend got {name} {list(tensor.shape)}, but the configuration says {list(wanted)}"
            )


def _sinks_of(model: Model) -> Sequence[torch.Tensor | None]:
    """Return the sinks of each layer, None for layers without."""
    config = model.config
    if not config.features.attention_sinks:
        return [None] * config.num_layers
    return [*SINKS.of(model), *[None] * config.num_layers][: config.num_layers]


def _check_sinks(model: Model) -> None:
    config = model.config
    found = [one if one is None else (one.dtype, tuple(one.shape)) for one in _sinks_of(model)]
    wanted = (torch.float32, (config.num_heads,)) if config.features.attention_sinks else None
    assert found == [wanted] * config.num_layers, (
        f"attention_sinks is set, so `sinks` must have a float32 [{config.num_heads}] for each of "
        f"{config.num_layers} layers, not {found}"
    )


def _attend(
    q_thd: torch.Tensor,
    k_tkd: torch.Tensor,
    v_tkd: torch.Tensor,
    config: Any,
    layer: int,
    sinks_h: torch.Tensor | None,
) -> torch.Tensor:
    group = config.num_heads // config.num_kv_heads
    keys, values = (x.repeat_interleave(group, dim=1) for x in (k_tkd, v_tkd))
    scores = torch.einsum("qhd,khd->hqk", q_thd, keys) * config.attention_scale
    if config.attention_soft_cap is not None:
        scores = torch.tanh(scores / config.attention_soft_cap) * config.attention_soft_cap
    places_q = torch.arange(len(keys) - len(q_thd), len(keys)).unsqueeze(1)
    places_k = torch.arange(len(keys))
    hidden = places_k > places_q
    window = config.layer_kinds[layer].sliding_window
    if window is not None:
        hidden |= places_k <= places_q - window
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks_h is not None:  # another column, which takes a share but has no value
        sinks_hq1 = sinks_h.view(-1, 1, 1).expand(-1, len(q_thd), 1)
        scores = torch.cat((scores, sinks_hq1.to(scores.dtype)), dim=-1)
    weights = scores.softmax(-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", weights, values)


def check_other_architectures_are_refused(model_impl: ImplClass, tmp_path: Path) -> None:
    """`reasons_against` says in lines of text why an unknown model cannot run."""
    reasons = model_impl.reasons_against(ModelSpec(path=tmp_path, fields=UNKNOWN))
    assert isinstance(reasons, list), f"reasons_against returned {reasons!r}, not a list"
    assert reasons, "reasons_against accepts an architecture that nobody knows"
    assert all(isinstance(one, str) and one and "\n" not in one for one in reasons), (
        f"reasons are lines of text, not {reasons!r}"
    )


def check_every_layer_attends_once_and_sizes_are_as_configured(
    model_impl: ImplClass, tmp_path: Path, model_path: Path | None = None
) -> None:
    """`attend` is called once per layer, in order, and shapes are as configured."""
    model = _load(model_impl, model_path, tmp_path)
    _check_sinks(model)
    attention = DenseAttention(model)
    hidden_te = _run(model, attention, [_tokens(model, 5)], [0])
    wanted = list(range(model.config.num_layers))
    assert attention.layers == wanted, f"attend was called for {attention.layers}, not {wanted}"
    assert tuple(hidden_te.shape) == (5, model.config.hidden_size), (
        f"forward returned {list(hidden_te.shape)}"
    )
    with torch.inference_mode():
        logits_rv = model.compute_logits(hidden_te[-2:])
    assert logits_rv.dtype is torch.float32, f"logits are {logits_rv.dtype}, not float32"
    assert tuple(logits_rv.shape) == (2, model.config.num_logits), (
        f"compute_logits returned {list(logits_rv.shape)}"
    )
    assert model.num_bytes >= 4 * model.config.num_layers * model.config.hidden_size
    assert model.num_parameters * 4 <= model.num_bytes * 2


def check_chunks_of_a_prompt_equal_the_whole(
    model_impl: ImplClass, tmp_path: Path, model_path: Path | None = None
) -> None:
    """A prompt in chunks, and then a decode, gives the hidden states of one pass.

    The model keeps no state: a token sees of other tokens only what `attend` returns.
    """
    model = _load(model_impl, model_path, tmp_path)
    tokens = _tokens(model, 13)
    whole = _run(model, DenseAttention(model), [tokens], [0])
    attention = DenseAttention(model)
    chunks = [
        _run(model, attention, [tokens[start:end]], [start])
        for start, end in ((0, 6), (6, 12), (12, 13))
    ]
    _compare(torch.cat(chunks), whole, "chunks of a prompt")


def check_sequences_of_a_batch_do_not_change_each_other(
    model_impl: ImplClass, tmp_path: Path, model_path: Path | None = None
) -> None:
    """Rows of a flat batch are independent, except through `attend`."""
    model = _load(model_impl, model_path, tmp_path)
    sequences = [_tokens(model, length, seed) for seed, length in enumerate((4, 1, 9))]
    together = _run(model, DenseAttention(model), sequences, [0, 0, 0])
    alone = [_run(model, DenseAttention(model), [one], [0]) for one in sequences]
    _compare(together, torch.cat(alone), "sequences of one batch")


@suite
class ModelImplConformance:
    """The suite for an implementation of models.

    Subclass it as Test..., with a fixture `model_impl` that returns the implementation's class,
    and a fixture `model_path` that returns a small model which it can run: a directory with
    config.json and safetensors files. Without `model_path`, the implementation's classmethod
    `write_sample(folder)` writes one; without that, only the reasons are tested.
    """


def _load(model_impl: ImplClass, path: Path | None, folder: Path) -> Model:
    """Load a model directory, or the sample that is written to `folder`, in float32 on the CPU."""
    if path is None:
        write = WRITE_SAMPLE.of(model_impl)
        if write is None:
            pytest.skip("the implementation has no write_sample(folder), and there is no model")
        write(folder)
    made = model_impl(describe(path or folder))
    options = LoadOptions(
        products=_SPEC,
        linear=TorchLinear(_SPEC),
        keeps_packed=False,
        max_model_len=None,
        progress=no_progress,
    )
    return made.load(made.open(), options)


def _run(
    model: Model,
    attention: DenseAttention,
    sequences: Sequence[torch.Tensor],
    starts: Sequence[int],
) -> torch.Tensor:
    attention.begin([len(one) for one in sequences])
    positions = [
        torch.arange(start, start + len(one)) for one, start in zip(sequences, starts, strict=True)
    ]
    with torch.inference_mode():
        return model.forward(torch.cat(list(sequences)), torch.cat(positions), attention)


def _tokens(model: Model, length: int, seed: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.config.vocab_size, (length,), generator=generator)


def _compare(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    error = ((got - wanted).norm() / wanted.norm()).item()
    assert error <= _TOLERANCE, f"{what}: hidden states differ by {error:.2g} of their size"
