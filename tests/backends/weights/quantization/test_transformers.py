"""Whole checkpoints: what transformers computes with the dequantized model, tokenmill serves."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.backends.models.dense import compute_logits
from tests.backends.tiny_checkpoints import TARGET, make_tokenizer
from tokenmill.backends.distill.saving import to_hf_config
from tokenmill.backends.linear.base import LinearBackend, LinearSpec
from tokenmill.backends.linear.torch import Linear, TorchLinear
from tokenmill.backends.models.native.decoder import Decoder
from tokenmill.backends.models.native.loader import load_decoder
from tokenmill.backends.weights.checkpoint import Checkpoint
from tokenmill.backends.weights.packed import PackedWeights, WeightFormat, Weights
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress
from tokenmill.core.requests.sampling_params import SamplingParams
from tokenmill.llm import LLM

from .checkpoints import write_llama, write_tensors
from .writers import CASES, Case, Written, fp8, gptq, quantize

TOKEN_IDS = torch.arange(40) * 31 % TARGET.vocab_size


def reference_of(path: Path, tensors: dict[str, torch.Tensor]) -> Any:
    """transformers' model of plain tensors."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(to_hf_config(TARGET, ()) | {"dtype": "float32"}))
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(plain, path / "model.safetensors", metadata={"format": "pt"})
    return load_reference(path)


def load_reference(path: Path, **options: Any) -> Any:
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    return load(path, dtype=torch.float32, **options).eval()


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    return logits.float().log_softmax(-1)


SERVED = ["awq", "gptq, act-order, zero points", "gptq, 2 bits", "fp8, blocks"] + [
    f"compressed-tensors, {kind}" for kind in ("int4, zero points", "int8", "fp8")
]


PROMPTS = [TOKEN_IDS[start : start + 12].tolist() for start in (0, 5, 9)]
NUM_TOKENS = 16


@pytest.mark.parametrize("case", SERVED)
def test_log_probabilities_are_those_of_the_dequantized_model(case: str, tmp_path: Path) -> None:
    checkpoint, dequantized = write_llama(tmp_path / "quantized", CASES[case])
    reference = reference_of(tmp_path / "plain", dequantized)
    with torch.inference_mode():
        expected = log_probabilities(reference(TOKEN_IDS.unsqueeze(0)).logits.squeeze(0))
        found = log_probabilities(compute_logits(load(checkpoint), TOKEN_IDS))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("case", "impl"),
    [
        ("awq", "native"),
        ("gptq, act-order", "native"),
        ("fp8, blocks", "native"),
        ("awq", "transformers"),
    ],
)
def test_the_engine_generates_the_tokens_of_the_dequantized_model(
    case: str, impl: str, tmp_path: Path
) -> None:
    path = tmp_path / "quantized"
    _, dequantized = write_llama(path, CASES[case])
    make_tokenizer(TARGET.vocab_size).save(str(path / "tokenizer.json"))
    reference = reference_of(tmp_path / "plain", dequantized)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    options = {"device": "cpu", "dtype": "float32", "num_gpu_blocks_override": 32}
    with LLM(str(path), model_impl=impl, **options) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert list(output.outputs[0].token_ids) == greedy(reference, prompt)


class Keeping(TorchLinear):
    """Keeps every format, and dequantizes its segments one by one."""

    num_segments: ClassVar[Counter[int]] = Counter()

    @classmethod
    def keeps(cls, spec: LinearSpec, format: WeightFormat) -> bool:
        return True

    def linear(self, segments: Sequence[Weights], bias: torch.Tensor | None) -> Linear:
        self.num_segments[len(segments)] += 1
        return super().linear([dense(one) for one in segments], bias)


@pytest.mark.parametrize("differ", [False, True], ids=["one order", "orders that differ"])
def test_act_order_of_fused_matrices_may_differ(differ: bool, tmp_path: Path) -> None:
    """q, k and v are one product. Those that share an order are one segment of it."""
    seeds = itertools.count()

    def write(weights: torch.Tensor) -> Written:
        draw = torch.Generator().manual_seed(next(seeds) if differ else 0)
        groups = torch.randperm(weights.shape[1], generator=draw) // 8
        return gptq(quantize(weights, bits=4, group_size=8, group_of=groups.tolist()), 4)

    case = Case(config=CASES["gptq, act-order"].config | {"group_size": 8}, write=write)
    checkpoint, dequantized = write_llama(tmp_path / "quantized", case)
    reference = reference_of(tmp_path / "plain", dequantized)
    Keeping.num_segments.clear()
    spec = LinearSpec(dtype=torch.float32, device=torch.device("cpu"))
    decoder = load(checkpoint, Keeping(spec))
    layers = TARGET.num_layers
    assert Keeping.num_segments[3] == (layers if differ else 0)
    with torch.inference_mode():
        expected = log_probabilities(reference(TOKEN_IDS.unsqueeze(0)).logits.squeeze(0))
        found = log_probabilities(compute_logits(decoder, TOKEN_IDS))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale_fmt", ["float", "ue8m0"])
def test_transformers_reads_the_same_fp8(scale_fmt: str, tmp_path: Path) -> None:
    """A scale is a number in float32, or a power of two, of which a file has the exponent."""

    def write(weights: torch.Tensor) -> Written:
        tensors, values = fp8(weights, (16, 16), ".weight_scale_inv")
        if scale_fmt == "ue8m0":
            scales = tensors[".weight_scale_inv"].to(torch.float8_e8m0fnu)
            tensors |= {".weight_scale_inv": scales}
        return tensors, values

    settings = {"quant_method": "fp8", "weight_block_size": [16, 16], "scale_fmt": scale_fmt}
    case = Case(config=settings, write=write)  # sizes must be multiples of the block's
    checkpoint, _ = write_llama(tmp_path / "quantized", case)
    reference = load_reference(tmp_path / "quantized")
    with torch.inference_mode():
        expected = log_probabilities(reference(TOKEN_IDS.unsqueeze(0)).logits.squeeze(0))
        found = log_probabilities(compute_logits(load(checkpoint), TOKEN_IDS))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_experts_of_gpt_oss_are_the_numbers_of_transformers(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, (3, 10, 2, 16), dtype=torch.uint8, generator=draw)
    scales = torch.randint(90, 140, (3, 10, 2), dtype=torch.uint8, generator=draw)
    name = "model.layers.0.mlp.experts.down_proj"
    tensors = {
        f"{name}_blocks": blocks,
        f"{name}_scales": scales,
        f"{name}_bias": torch.zeros(3, 10),
    }
    checkpoint = write_tensors(tmp_path, tensors, {"quant_method": "mxfp4"})
    assert sorted(checkpoint.tensor_names()) == [name, f"{name}_bias"]
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert torch.equal(checkpoint.tensor(name), expected)
    matrix = checkpoint.matrix(name)
    assert isinstance(matrix, PackedWeights)
    assert matrix.num_bytes == blocks.numel() + scales.numel()
    assert torch.equal(matrix.narrow(0, 10, 10).dequantize(), expected[1].t())
    scales = scales[:, :, :1]
    checkpoint = write_tensors(
        tmp_path, tensors | {f"{name}_scales": scales}, {"quant_method": "mxfp4"}
    )
    with pytest.raises(ConfigError, match=f"{name} of .*_blocks and _scales do not fit"):
        checkpoint.matrix(name)


def load(checkpoint: Checkpoint, linear: LinearBackend | None = None) -> Decoder:
    cpu = torch.device("cpu")
    return load_decoder(
        checkpoint, dtype=torch.float32, device=cpu, progress=no_progress, linear=linear
    )


def dense(weights: Weights) -> torch.Tensor:
    return weights.dequantize() if isinstance(weights, PackedWeights) else weights


def greedy(reference: Any, prompt: list[int]) -> list[int]:
    out = reference.generate(
        torch.tensor([prompt]),
        do_sample=False,
        max_new_tokens=NUM_TOKENS,
        min_new_tokens=NUM_TOKENS,
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens
