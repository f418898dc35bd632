"""FlashAttention's generations behind their adapters, against a naive float64 computation.

No GPU is needed: the packages are stand-ins with their true signatures, see package_fakes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tokenmill.backends.attention import gathered
from tokenmill.backends.attention.base import AttentionSpec
from tokenmill.backends.attention.flash.backend import FlashAttention
from tokenmill.backends.attention.kv_layout import KVLayout

from ..package_fakes import (
    Calls,
    forgotten,
    install,
    install_flash_attention_2,
    install_flash_attention_3,
    install_flash_attention_4,
    vllm_operators,
)
from ..steps import BATCHES, CHUNKS, DECODES, PROMPTS, SPEC, VARIANTS, Step

INSTALL: dict[str, Callable[[pytest.MonkeyPatch], Calls]] = {
    "2": install_flash_attention_2,
    "3": install_flash_attention_3,
    "4": install_flash_attention_4,
}
GENERATIONS = [*INSTALL, "3 of vLLM"]
BF16 = replace(SPEC, dtype=torch.bfloat16)


@pytest.fixture(autouse=True)
def nothing_installed() -> Iterator[None]:
    with forgotten("flash_attn", "flash_attn_interface", "vllm"):
        yield


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    set_capability(monkeypatch, (9, 0))


@pytest.fixture(params=GENERATIONS)
def generation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One generation is installed."""
    name: str = request.param
    if name in INSTALL:
        INSTALL[name](monkeypatch)
        yield name
    else:
        with vllm_operators(has_o_scale=False):
            yield name


def set_capability(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None) -> None:
    monkeypatch.setattr(
        "tokenmill.backends.attention.flash.backend.compute_capability", lambda device: capability
    )


def fit(generation: str, spec: AttentionSpec = SPEC) -> AttentionSpec:
    """FlashAttention 2 takes large blocks only."""
    return replace(spec, block_size=256) if generation == "2" else spec


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", BATCHES)
def test_equals_a_naive_float64_computation(generation: str, kind: str, variant: str) -> None:
    spec = replace(fit(generation), **VARIANTS[variant])
    Step(FlashAttention, spec, *BATCHES[kind]).check()


@pytest.mark.parametrize("layout", KVLayout)
def test_reads_and_writes_any_layout_of_the_cache(generation: str, layout: KVLayout) -> None:
    """Every token lands in its slot; all other slots keep what they held."""
    spec = replace(fit(generation), kv_cache_layout=layout)
    step = Step(FlashAttention, spec, *BATCHES["mixed"])
    step.check()
    written = torch.cat(step.slots)
    for view, expected in zip(layout.views(step.cache), (step.k, step.v), strict=True):
        rows = view.flatten(0, 1)
        assert torch.equal(rows[written], torch.cat(expected))
        assert rows.isnan().all(dim=(1, 2)).sum() == rows.shape[0] - len(written)


@pytest.mark.parametrize("num_kv_heads", [1, 3, 6])
def test_query_heads_share_kv_heads_in_any_ratio(generation: str, num_kv_heads: int) -> None:
    spec = replace(fit(generation), num_kv_heads=num_kv_heads)
    Step(FlashAttention, spec, *BATCHES["mixed"]).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_stay_within_their_rounding(generation: str, dtype: torch.dtype) -> None:
    spec = replace(fit(generation), dtype=dtype)
    assert FlashAttention.reasons_against(spec) == []
    Step(FlashAttention, spec, *BATCHES["mixed"]).check(tolerance=2e-2)


@pytest.mark.parametrize("block_size", [8, 16, 128, 256])
@pytest.mark.parametrize("name", ["3", "4"])
def test_generations_3_and_4_take_any_block_size(
    monkeypatch: pytest.MonkeyPatch, name: str, block_size: int
) -> None:
    calls = INSTALL[name](monkeypatch)
    step = Step(FlashAttention, replace(SPEC, block_size=block_size), *BATCHES["mixed"])
    calls.names.clear()
    step.check()
    assert len(calls.names) == 1, "decodes, prompts and chunks go in one call"


def test_a_later_vllm_may_have_more_optional_arguments() -> None:
    with vllm_operators(has_o_scale=True) as calls:
        Step(FlashAttention, SPEC, *BATCHES["mixed"]).check()
    assert calls.names


def test_generation_2_computes_decodes_in_a_call_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = install_flash_attention_2(monkeypatch)
    for kind, expected in (
        ("mixed", ["kvcache", "varlen"]),
        ("decodes", ["kvcache"]),
        ("chunks", ["varlen"]),
    ):
        step = Step(FlashAttention, fit("2"), *BATCHES[kind])
        calls.names.clear()
        step.check()
        assert calls.names == expected


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("max_keys", [50, 1 << 17])
def test_generation_2_copies_the_context_of_chunks_if_blocks_are_small(
    monkeypatch: pytest.MonkeyPatch, max_keys: int, variant: str
) -> None:
    monkeypatch.setattr(gathered, "_MAX_KEYS", max_keys)
    install_flash_attention_2(monkeypatch)
    spec = replace(BF16, computes_decodes=False, **VARIANTS[variant])
    assert FlashAttention.reasons_against(spec) == []
    spans = [*CHUNKS[:2], *PROMPTS, *CHUNKS[2:], *DECODES]
    Step(FlashAttention, replace(spec, dtype=torch.float32), spans, 0).check()


def test_generation_2_copies_nothing_for_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their keys are the step's own, even if the cache were broken."""
    calls = install_flash_attention_2(monkeypatch)
    step = Step(FlashAttention, replace(SPEC, computes_decodes=False), *BATCHES["prompts"])
    monkeypatch.setattr(KVLayout, "views", lambda self, cache: cache.unbind(1))
    calls.names.clear()
    step.check()
    assert calls.names == ["varlen"]


@pytest.mark.parametrize(
    ("capability", "installed", "chosen"),
    [
        ((9, 0), "234", "FlashAttention 3"),
        ((9, 0), "24", "FlashAttention 4"),
        ((9, 0), "2", "FlashAttention 2"),
        ((10, 0), "234", "FlashAttention 4"),
        ((8, 0), "234", "FlashAttention 2"),
        ((12, 0), "34", None),
        ((7, 5), "234", None),
    ],
)
def test_takes_the_best_generation_for_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    installed: str,
    chosen: str | None,
) -> None:
    set_capability(monkeypatch, capability)
    for name in installed:
        INSTALL[name](monkeypatch)
    spec = replace(BF16, block_size=256)
    if chosen is None:
        assert len(FlashAttention.reasons_against(spec)) == 4
    else:
        assert FlashAttention.reasons_against(spec) == []
        assert FlashAttention(spec).generation == chosen


def test_says_every_reason_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    set_capability(monkeypatch, None)
    install_flash_attention_2(monkeypatch)
    spec = replace(SPEC, num_kv_heads=4, head_size=20)
    heads = "heads must have a multiple of 8 elements, at most 256, not 20"
    assert FlashAttention.reasons_against(spec) == [
        "it runs on NVIDIA GPUs, not on cpu",
        "it computes in float16 or bfloat16, not in float32",
        "6 query heads cannot share 4 KV heads",
        f"FlashAttention 3: {heads}, flash_attn_interface is not installed "
        "(built from FlashAttention's folder hopper)",
        f"FlashAttention 3 of vLLM: {heads}, vLLM's _vllm_fa3_C is not installed "
        "(pip install vllm)",
        f"FlashAttention 4: {heads}, flash_attn.cute is not installed (pip install flash-attn-4)",
        f"FlashAttention 2: {heads}, decodes need blocks of a multiple of 256 slots, not of 8: "
        "set --block-size 256, or name another backend for decodes",
    ]


def test_generation_4_takes_fewer_head_sizes_on_blackwell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install_flash_attention_4(monkeypatch)
    spec = replace(BF16, head_size=192)
    assert FlashAttention.reasons_against(spec) == []
    set_capability(monkeypatch, (10, 0))
    assert "at most 128 elements, or 256, not 192" in str(FlashAttention.reasons_against(spec))
    assert FlashAttention.reasons_against(replace(spec, head_size=256)) == []


class Folder:
    """A folder that modules are imported from."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, module: str, code: str) -> None:
        file = self.path / (module.replace(".", "/") + ".py")
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(code)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.syspath_prepend(str(tmp_path))
    return Folder(tmp_path)


def test_a_broken_package_is_a_reason_with_its_message(folder: Folder) -> None:
    folder.write("flash_attn_interface", "raise OSError('libcudart.so.12: cannot open\\nshared')")
    reasons = FlashAttention.reasons_against(BF16)
    assert (
        "FlashAttention 3: flash_attn_interface cannot be imported: "
        "OSError: libcudart.so.12: cannot open"
    ) in reasons


def test_a_part_of_a_package_is_not_taken_for_the_whole(folder: Folder) -> None:
    """flash-attn-4 brings a package flash_attn that is not that of FlashAttention 2."""
    folder.write("flash_attn.cute", "flash_attn_varlen_func = None")
    reasons = " ".join(FlashAttention.reasons_against(replace(BF16, head_size=20)))
    assert "flash_attn.flash_attn_interface is not installed" in reasons
    assert "flash_attn.cute is not installed" not in reasons
    assert FlashAttention.reasons_against(BF16) == []


def test_nothing_is_imported_if_something_else_is_in_the_way(folder: Folder) -> None:
    for module in ("flash_attn_interface", "flash_attn.cute", "flash_attn.flash_attn_interface"):
        folder.write(module, "raise SystemExit('imported')")
    assert FlashAttention.reasons_against(replace(BF16, head_size=20))


def test_an_operator_library_that_cannot_be_loaded_is_a_reason(folder: Folder) -> None:
    folder.write("vllm.__init__", "raise SystemExit('imported')")
    folder.write("vllm.vllm_flash_attn.__init__", "")
    library = folder.path / "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so"
    library.write_text("no library")
    assert any(
        reason.startswith(f"FlashAttention 3 of vLLM: {library} cannot be loaded: OSError")
        for reason in FlashAttention.reasons_against(BF16)
    )


def test_says_what_is_on_this_machine_without_a_model(
    monkeypatch: pytest.MonkeyPatch, folder: Folder
) -> None:
    install(monkeypatch, "flash_attn.cute", flash_attn_varlen_func=None)
    folder.write("flash_attn_interface", "import nothing_like_that")
    lacks, *generations = FlashAttention.on_this_machine()
    if not torch.cuda.is_available():
        assert lacks == f"no CUDA device: torch {torch.__version__} finds none"
        assert generations == [
            "FlashAttention 3: flash_attn_interface cannot be imported: "
            "ModuleNotFoundError: No module named 'nothing_like_that'",
            "FlashAttention 3 of vLLM: vLLM's _vllm_fa3_C is not installed (pip install vllm)",
            "FlashAttention 4: installed",
            "FlashAttention 2: flash_attn.flash_attn_interface is not installed "
            "(pip install flash-attn, needs nvcc)",
        ]


def test_copies_blocks_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that was a target may be the source of a later pair."""
    install_flash_attention_3(monkeypatch)
    backend = FlashAttention(SPEC)
    cache = torch.arange(4.0).view(4, 1, 1, 1, 1).expand(backend.kv_cache_shape(4)).clone()
    backend.copy_blocks(cache, cache, [(3, 0), (0, 1)])
    assert [cache[block].mean() for block in range(4)] == [3, 3, 2, 3]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_captured_step_computes_what_is_filled_in(generation: str, variant: str) -> None:
    """A graph of more sequences than the step has: what is too many changes nothing."""
    spec = replace(fit(generation), **VARIANTS[variant])
    step = Step(FlashAttention, spec, *BATCHES["decodes"])
    used, captured = len(DECODES), len(DECODES) + 3
    step.backend.begin_capture(max_num_seqs=16, max_model_len=2048)
    metadata = step.backend.prepare_capture(captured)
    q, k, v = (
        torch.cat([torch.cat([x[-1:] for x in rows]), torch.full((3, *rows[0].shape[1:]), 7.0)])
        for rows in (step.q, step.k, step.v)
    )
    out = torch.full_like(q, torch.nan)
    step.backend.prepare_replay(step.batch, captured)
    step.backend.forward(0, q, k, v, step.cache, metadata, out)
    expected = torch.cat(step.expected())
    torch.testing.assert_close(out[:used].double(), expected, rtol=2e-6, atol=2e-6)
    assert not out[used:].any()
    keys, _ = KVLayout.BLOCKS.views(step.cache)
    assert torch.equal(keys.flatten(0, 1)[torch.cat(step.slots)], torch.cat(step.k))
