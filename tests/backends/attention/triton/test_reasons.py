"""What the Triton backend says against a spec or a machine; needs no triton and no GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.backends.attention.steps import GPU_SPEC
from tokenmill.backends.attention.triton.backend import TritonAttention

REASONS = "tokenmill.backends.attention.triton.reasons"


@pytest.fixture(autouse=True)
def triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with an H100 and a package named triton; its `__init__.py`."""
    source = tmp_path / "site" / "triton" / "__init__.py"
    source.parent.mkdir(parents=True)
    source.touch()
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(f"{REASONS}.compute_capability", lambda device: (9, 0))
    monkeypatch.setattr(f"{REASONS}.reasons_of_machine", lambda: ((9, 0), []))
    monkeypatch.setattr(f"{REASONS}.sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setenv("CC", "cc")
    monkeypatch.syspath_prepend(source.parent.parent)
    imported = set_aside()
    yield source
    set_aside()
    sys.modules.update(imported)


def set_aside() -> dict[str, ModuleType]:
    """The modules of what is imported as triton, which are forgotten."""
    names = [name for name in sys.modules if name.partition(".")[0] == "triton"]
    return {name: sys.modules.pop(name) for name in names}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_size", [16, 64, 80, 96, 112, 128, 256])
@pytest.mark.parametrize("block_size", [1, 8, 16, 32, 64, 256])
def test_serves_usual_models(dtype: torch.dtype, head_size: int, block_size: int) -> None:
    spec = replace(GPU_SPEC, dtype=dtype, head_size=head_size, block_size=block_size)
    assert TritonAttention.reasons_against(spec) == []
    assert TritonAttention.on_this_machine() == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.float64}, "it computes in float32, bfloat16 or float16, not in float64"),
        ({"head_size": 40}, "heads must have a multiple of 16 elements, at most 256, not 40"),
        ({"head_size": 512}, "heads must have a multiple of 16 elements, at most 256, not 512"),
        ({"num_heads": 12}, "12 query heads cannot share 8 KV heads"),
        ({"num_heads": 200, "num_kv_heads": 1}, "at most 128 query heads may share a KV head"),
    ],
)
def test_says_what_it_cannot_compute(change: dict[str, object], reason: str) -> None:
    [said] = TritonAttention.reasons_against(replace(GPU_SPEC, **change))  # type: ignore[arg-type]
    assert reason in said


def test_a_missing_package_is_a_reason(triton: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenmill.backends.attention.packages.find_spec", lambda name: None)
    assert TritonAttention.reasons_against(GPU_SPEC) == [
        "triton is not installed (pip install triton)"
    ]
    assert "triton" not in sys.modules


@pytest.mark.parametrize("line", ["raise RuntimeError('libcuda is too old')", "import nothing_"])
def test_a_broken_package_is_a_reason_and_no_crash(triton: Path, line: str) -> None:
    triton.write_text(line)
    [reason] = TritonAttention.reasons_against(GPU_SPEC)
    assert reason.startswith("triton cannot be imported: ")
    assert TritonAttention.on_this_machine() == [reason]


def test_a_machine_that_cannot_compile_a_launcher_is_told_what_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC")
    monkeypatch.setattr(f"{REASONS}.shutil.which", lambda name: None)
    (tmp_path / "Python.h").unlink()
    compiler, headers = TritonAttention.reasons_against(GPU_SPEC)
    assert "C compiler" in compiler and "Python's headers" in headers


def test_old_gpus_are_refused_by_their_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{REASONS}.compute_capability", lambda device: (7, 5))
    assert TritonAttention.reasons_against(GPU_SPEC) == [
        "it needs compute capability 8.0 or newer, this GPU has 7.5"
    ]


def test_all_reasons_are_said_at_once(triton: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("tokenmill.backends.attention.packages.find_spec", lambda name: None)
    spec = replace(GPU_SPEC, device=torch.device("cpu"), dtype=torch.float64, head_size=40)
    device, dtype, head_size, package = TritonAttention.reasons_against(spec)
    assert device == "it runs on NVIDIA GPUs, not on cpu"
    assert "float64" in dtype and "40" in head_size and "not installed" in package
