"""The loaded library: instruction sets, threads that sleep, and processes that fork."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from tokenmill.backends.cpu.native import instruction_sets
from tokenmill.backends.cpu.native import library as module
from tokenmill.backends.cpu.native.build import build_library
from tokenmill.backends.cpu.native.library import Layout, Library, load_library
from tokenmill.backends.cpu.native.structures import LinearCallStruct, PackedLinearStruct
from tokenmill.backends.cpu.packed_weights import linear, pack_linear
from tokenmill.backends.machine.compiling import BuildError, CacheError
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import Progress

pytestmark = pytest.mark.usefixtures("library")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

FORKING = """
import os, torch
from tokenmill.backends.cpu.native.library import load_library
from tokenmill.backends.cpu.packed_weights import linear, pack_linear
load_library().set_threads(2)
packed, x = pack_linear(torch.ones(64, 64)), torch.ones(2, 64, dtype=torch.bfloat16)
assert (linear(x, packed) == 64).all()
child = os.fork()
if child == 0:
    alone = load_library().num_threads
    load_library().set_threads(2)
    os._exit(0 if alone == 1 and (linear(x, packed) == 64).all() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


TOO_MANY_THREADS = """
import re, resource, torch
from tokenmill.backends.cpu.native.library import load_library
from tokenmill.backends.cpu.packed_weights import linear, pack_linear
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import Progress
library, packed = load_library(), pack_linear(torch.ones(64, 64))
used = int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 28), used + (1 << 28)))
try:
    library.set_threads(20000)
except ConfigError as error:
    print(error)
print(library.num_threads)
library.set_threads(1)
print(bool((linear(torch.ones(2, 64, dtype=torch.bfloat16), packed) == 64).all()))
"""


def test_one_library_serves_a_process(library: Library) -> None:
    assert load_library() is library


def test_a_library_is_of_the_set_that_it_was_loaded_for(
    library: Library, instruction_set: str
) -> None:
    assert library.instruction_set == instruction_set


def test_a_library_that_fails_its_test_gives_way_to_the_next_lower_set(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failure_of(path: Path, progress: Progress) -> str | None:
        return "the self-test died of SIGILL" if "_avx2-" in path.name else None

    monkeypatch.setattr(module, "_loaded", {})
    monkeypatch.setattr(module, "failure_of", failure_of)
    monkeypatch.setattr(instruction_sets, "choose_sets", lambda: ("avx2", "portable"))
    assert load_library().instruction_set == "portable"
    (warning,) = [vars(r) for r in caplog.records if r.getMessage() == "cpu_kernels_are_wrong"]
    assert warning["instruction_set"] == "avx2" and warning["instead"] == "portable"
    assert warning["found"] == "the self-test died of SIGILL"


@pytest.mark.parametrize("sets", [("avx2", "portable"), ("i8mm", "dotprod", "portable")])
def test_a_compiler_that_is_too_old_for_the_best_sets_builds_the_next_lower_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sets: tuple[str, ...]
) -> None:
    def build(name: str, progress: Progress) -> Path:
        if name != "portable":
            raise BuildError("g++ 9 is too old")
        return build_library(name, progress)

    monkeypatch.setattr(module, "_loaded", {})
    monkeypatch.setattr(module, "build_library", build)
    monkeypatch.setattr(instruction_sets, "choose_sets", lambda: sets)
    assert load_library().instruction_set == "portable"
    (warning,) = [vars(r) for r in caplog.records if r.getMessage() == "cpu_kernels_not_built"]
    assert warning["error"] == "g++ 9 is too old" and warning["instead"] == "portable"


def test_without_room_for_the_best_library_no_other_one_is_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def build(name: str, progress: Progress) -> Path:
        tried.append(name)
        raise CacheError("the disk is full")

    monkeypatch.setattr(module, "_loaded", {})
    monkeypatch.setattr(module, "_failed", None)
    monkeypatch.setattr(module, "build_library", build)
    monkeypatch.setattr(instruction_sets, "choose_sets", lambda: ("avx2", "portable"))
    for _ in range(2):
        with pytest.raises(CacheError, match="the disk is full"):
            load_library()
    assert tried == ["avx2"]
    (warning,) = [vars(r) for r in caplog.records if r.getMessage() == "cpu_kernels_not_built"]
    assert (warning["error"], warning["instead"]) == ("the disk is full", "torch")


def test_where_every_library_fails_its_test_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_loaded", {})
    monkeypatch.setattr(module, "_failed", None)
    monkeypatch.setattr(module, "failure_of", lambda path, progress: "attention: wrong")
    monkeypatch.setattr(instruction_sets, "choose_sets", lambda: ("portable",))
    with pytest.raises(BuildError, match="self-test here: attention: wrong"):
        load_library()


def test_a_product_for_which_there_is_no_memory_fails_and_the_next_one_is_right(
    library: Library, instruction_set: str
) -> None:
    packed, x = pack_linear(torch.ones(64, 64)), torch.ones(3, 64, dtype=torch.bfloat16)
    huge = PackedLinearStruct(n=64, k=1 << 52, layout=Layout.BLOCKS4)
    call = LinearCallStruct(weights=ctypes.pointer(huge), x_stride=huge.k, rows=3)
    with pytest.raises(MemoryError, match="not enough memory for a product"):
        library.linear(ctypes.byref(call))
    assert (linear(x, packed) == 64).all()


def test_the_environment_names_an_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(instruction_sets.VARIABLE, "portable")
    assert load_library().instruction_set == "portable"


def test_less_than_one_thread_is_refused(library: Library) -> None:
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        library.set_threads(0)


@pytest.mark.usefixtures("restore_threads")
def test_products_of_several_threads_do_not_mix(library: Library) -> None:
    library.set_threads(2)
    packed = pack_linear(torch.ones(64, 64))
    right: list[bool] = []

    def compute(value: float) -> None:
        x = torch.full((3, 64), value, dtype=torch.bfloat16)
        right.append(all((linear(x, packed) == 64 * value).all() for _ in range(50)))

    threads = [threading.Thread(target=compute, args=(float(value),)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 4


@linux_only
@pytest.mark.usefixtures("restore_threads")
def test_workers_that_have_nothing_to_do_sleep(library: Library) -> None:
    library.set_threads(1)
    before = _thread_ids()
    library.set_threads(3)
    linear(torch.ones(1, 64, dtype=torch.bfloat16), pack_linear(torch.ones(64, 64)))
    workers = _thread_ids() - before
    assert len(workers) == 2
    while not all(_is_asleep(worker) for worker in workers):  # the test's time limit ends it
        time.sleep(0.01)
    library.set_threads(1)
    assert not workers & _thread_ids()


@linux_only
@pytest.mark.usefixtures("restore_threads")
def test_the_calling_thread_is_left_where_it_is(library: Library) -> None:
    before = os.sched_getaffinity(0)
    library.set_threads()
    linear(torch.ones(1, 64, dtype=torch.bfloat16), pack_linear(torch.ones(64, 64)))
    assert os.sched_getaffinity(0) == before


@linux_only
@pytest.mark.usefixtures("restore_threads")
def test_a_calling_thread_keeps_off_the_workers_cpus_while_it_computes(library: Library) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    library.set_threads(2)
    packed, x = pack_linear(torch.ones(1024, 512)), torch.ones(64, 512, dtype=torch.bfloat16)
    is_over = threading.Event()

    def compute() -> None:
        while not is_over.is_set():
            linear(x, packed)

    caller = threading.Thread(target=compute)
    caller.start()
    try:
        while len(os.sched_getaffinity(caller.native_id or 0)) > 1:
            pass  # the test's time limit ends it
    finally:
        is_over.set()
        caller.join()


@linux_only
def test_more_threads_than_the_system_gives_are_refused_and_the_rest_computes() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TOO_MANY_THREADS],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    refusal, number, result = done.stdout.splitlines()
    assert "of 20000 CPU threads" in refusal
    assert 1 <= int(number) < 20000
    assert result == "True"


@linux_only
def test_a_forked_process_computes_alone_until_it_is_given_threads() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.strip() == "0"


def _thread_ids() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def _is_asleep(thread: str) -> bool:
    status = Path(f"/proc/self/task/{thread}/stat").read_text()
    return status.rpartition(")")[2].split()[0] == "S"
