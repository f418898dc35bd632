"""The CUDA library: compiled without spills, built once, and clear about why it cannot be."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.compiling import compile_once
from tokenmill.backends.cuda import build, library
from tokenmill.backends.cuda.build import HEAD_SIZES, SOURCES, build_library, find_nvcc
from tokenmill.backends.machine.compiling import BuildError
from tokenmill.core.interfaces import no_progress

CHECK = (pytest.mark.check, pytest.mark.depends_on("src/backends/cuda/csrc"))


def with_nvcc(test: Callable[..., None]) -> Callable[..., None]:
    """Mark tests that call the real compiler. They take minutes in all. The CPU does not change the
    output of the compiler."""
    for mark in CHECK:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def nvcc() -> str:
    try:
        return find_nvcc()
    except BuildError as error:
        pytest.skip(str(error))


@pytest.fixture
def fake_nvcc(no_nvcc: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A compiler that only makes the files that it is asked for."""
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" = -o ] && : >"$2"; shift; done\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CUDACXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def no_nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CUDACXX", "CUDA_HOME", "TORCH_CUDA_ARCH_LIST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "_USUAL_NVCC", str(tmp_path / "nvcc"))


def registers_and_spills(report: str) -> dict[str, tuple[int, int]]:
    """Per kernel, from what ptxas says with -v."""
    pattern = r"Compiling entry function '(\S+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers"
    return {
        kernel: (int(registers), int(spilled))
        for kernel, spilled, registers in re.findall(pattern, report, re.DOTALL)
    }


@with_nvcc
@pytest.mark.parametrize("architecture", ["8.0", "9.0a"])
@pytest.mark.parametrize("head_size", [64, 128, 256])
def test_kernels_compile_without_spills(
    head_size: int,
    architecture: str,
    nvcc: str,
    pytestconfig: pytest.Config,
    record_property: pytest.RecordProperty,
) -> None:
    flags = build.flags_of_kernels(head_size, [architecture])
    flags = [flag for flag in flags if not flag.startswith("-fPIC") and flag != "-Xcompiler"]
    command = [nvcc, *flags, "-cubin", "-Xptxas", "-v"]
    cache = Path(pytestconfig.cache.mkdir("compiled"))
    compiled = compile_once(command, SOURCES / "paged_attention.cu", [SOURCES], cache)
    kernels = registers_and_spills(compiled.report)
    for name in ("attend_few_rows", "attend_many_rows", "attend_plainly", "merge_splits"):
        assert any(name in kernel for kernel in kernels), kernels
    for element in ("E4M3", "E5M2"):
        assert any(element in kernel for kernel in kernels), kernels
    for kernel, (registers, spilled) in kernels.items():
        record_property(kernel, f"{registers} registers, {spilled} bytes spilled")
        assert spilled == 0, kernel


@with_nvcc
def test_the_library_loads_without_a_gpu_and_refuses_cpu_tensors(nvcc: str) -> None:
    """Its calls reach the kernels only with tensors on a GPU."""
    path = build_library(no_progress, ["9.0"])
    torch.ops.load_library(str(path))
    operators = torch.ops.tokenmill_cuda
    x_tkd, cache = torch.zeros(1, 2, 64), torch.zeros(1, 2, 2, 16, 64)
    one = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=r"tokenmill_cuda::write_kv.*'CPU' backend"):
        operators.write_kv(x_tkd, x_tkd, one.long(), cache, 0)
    batch = (x_tkd, cache, one.view(1, 1), one, one, x_tkd)
    with pytest.raises(NotImplementedError, match=r"attend_prompts.*'CPU' backend"):
        operators.attend_prompts(*batch, 0, 1, 1, 0.1, 0, 0.0, 0)
    partial = (x_tkd, x_tkd, one)
    with pytest.raises(NotImplementedError, match=r"attend_decodes.*'CPU' backend"):
        operators.attend_decodes(*batch, *partial, 0, 1, 1, 1, 0.1, 0, 0.0, 0)


def test_a_library_is_built_once_and_its_progress_is_told(
    fake_nvcc: None,
) -> None:
    parts: list[float] = []
    path = build_library(lambda stage, part: parts.append(part), ["9.0"])
    assert path.is_file()
    assert parts == sorted(parts) and (parts[0], parts[-1]) == (0.0, 1.0)
    assert len(parts) == 2 + 1 + len(HEAD_SIZES)  # begin, end, the binding, and the kernels
    assert build_library(lambda stage, part: pytest.fail("built again"), ["9.0"]) == path


def test_the_head_sizes_are_those_of_the_sources() -> None:
    listed = re.findall(r"DO\((\d+)\)", (SOURCES / "head_sizes.h").read_text())
    assert tuple(map(int, listed)) == HEAD_SIZES


def test_a_machine_without_nvcc_is_told_what_to_install(no_nvcc: None) -> None:
    with pytest.raises(BuildError, match=r"nvcc was not found.*install the CUDA toolkit"):
        build_library(no_progress)


def test_cudacxx_and_cuda_home_name_the_compiler(
    no_nvcc: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine = tmp_path / "home" / "bin" / "nvcc"
    mine.parent.mkdir(parents=True)
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert find_nvcc() == str(mine)
    monkeypatch.setenv("CUDACXX", "missing-nvcc")
    with pytest.raises(
        BuildError, match="CUDACXX names the compiler 'missing-nvcc', which was not found"
    ):
        find_nvcc()


@pytest.mark.parametrize("listed", ["8.0;hopper", "90", " "])
def test_architectures_that_are_none_are_refused(
    listed: str, fake_nvcc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    with pytest.raises(BuildError, match=r"must be like '8\.0;9\.0'"):
        build_library(no_progress)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to build for")
def test_without_a_gpu_the_architectures_must_be_named(
    fake_nvcc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    with pytest.raises(BuildError, match="no GPU to build for: set TORCH_CUDA_ARCH_LIST"):
        build_library(no_progress)


@with_nvcc
def test_the_compiler_s_first_error_is_told(
    monkeypatch: pytest.MonkeyPatch, nvcc: str, tmp_path: Path
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("nvcc needs a C++ compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "binding.cpp").write_text("int answer() { return unknown; }\n")
    (sources / "paged_attention.cu").write_text("\n")
    monkeypatch.setattr(build, "SOURCES", sources)
    with pytest.raises(BuildError, match=r"failed .*unknown"):
        build_library(no_progress, ["9.0"])


def test_a_prebuilt_library_wins(
    no_nvcc: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prebuilt = tmp_path / "libtokenmill_cuda.so"
    prebuilt.write_bytes(b"")
    monkeypatch.setattr(build, "PREBUILT", prebuilt)
    assert build_library(no_progress) == prebuilt


def test_a_build_that_failed_is_not_tried_again(
    no_nvcc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "_failed", None)
    with pytest.raises(BuildError, match="nvcc was not found") as first:
        library.load_operators()
    monkeypatch.setattr(library, "build_library", lambda progress: pytest.fail("tried again"))
    with pytest.raises(BuildError) as second:
        library.load_operators()
    assert second.value is first.value


def test_a_library_that_does_not_load_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.so"
    broken.write_text("not a library")
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "_failed", None)
    monkeypatch.setattr(library, "build_library", lambda progress: broken)
    with pytest.raises(BuildError, match=r"broken\.so cannot be loaded"):
        library.load_operators()
