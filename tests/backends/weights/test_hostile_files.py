"""Damaged and hostile model files: each opens, or is refused in one line, within bounded memory."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.linear.torch import TorchLinear
from tokenmill.backends.models.base import ModelSpec
from tokenmill.backends.models.native.implementation import NativeModels
from tokenmill.backends.running.parts import memory_need
from tokenmill.backends.running.parts.model_parts import Backends, choose_spec, load_parts
from tokenmill.backends.text.load import load_tokenizer
from tokenmill.backends.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.backends.weights.config.architectures import BY_MULTIMODAL, BY_NAME
from tokenmill.backends.weights.gguf.file import read_gguf_file
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.interfaces import no_progress

from ..models.native.test_loader import CONFIG
from ..tiny_checkpoints import write_model
from .gguf_writing import write_gguf
from .hostile_directories import configs, safetensors
from .hostile_gguf import layout_of, made_up, mutated

CASES = {"mutated gguf": 450, "made-up gguf": 250, "config.json": 150, "safetensors": 150}
"""Cases of each kind in `make test`, 1,000 in all; `make soak` has 100 times as many."""
SOAK = 100
SMALL = replace(CONFIG, num_layers=1, hidden_size=32, intermediate_size=32, vocab_size=32)
MEMORY_FACTOR = 40
"""Bytes of memory per byte of file, at most. A list of numbers of two bytes takes 36."""
MEMORY_BASE = 1 << 20
"""Bytes. Modules that are imported by the first case that needs them, and caches."""
BACKENDS = Backends(TorchAttention, TorchLinear, NativeModels)
EXTRA_FIELDS = {
    "head_dim": 8,
    "sliding_window": 16,
    "use_sliding_window": True,
    "max_window_layers": 0,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
    "torch_dtype": "bfloat16",
    "draft_vocab_size": 8,
    "query_pre_attn_scalar": 8,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_experts": 2,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "max_new_tokens": 5,
}


REASONS: deque[str] = deque(maxlen=3)
"""The last refusals, for the report of a failure."""


@dataclass(frozen=True, slots=True)
class Case:
    """A file to try, without its bytes in Hypothesis's reports."""

    content: bytes

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"{len(self.content)} bytes")


@st.composite
def cases(draw: st.DrawFn, contents: st.SearchStrategy[bytes]) -> Case:
    return Case(draw(contents))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    values = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "split.count": 1}
    write_gguf(folder / "m.gguf", random_checkpoint(SMALL, 0), kind=Kind.Q4_0, values=values)
    write_model(folder / "m", replace(SMALL, vocab_size=200), 0)
    return folder


def strategy(kind: str, folder: Path) -> tuple[st.SearchStrategy[bytes], Path, Path]:
    """The contents to try, the file to write them to, and the model that it belongs to."""
    gguf, directory = folder / "m.gguf", folder / "m"
    if kind == "mutated gguf":
        return mutated(layout_of(read_gguf_file(gguf), gguf.read_bytes())), gguf, gguf
    if kind == "made-up gguf":
        return made_up(), gguf, gguf
    if kind == "config.json":
        config = directory / "config.json"
        valid = json.loads(config.read_text())
        bases = [valid, *({**valid, **EXTRA_FIELDS, "architectures": [name]} for name in BY_NAME)]
        for name, row in BY_MULTIMODAL.items():
            text = {**valid, "model_type": row.model_type}
            bases.append({"architectures": [name], "text_config": text})
        contents = st.one_of([configs(base, EXTRA_FIELDS) for base in bases])
        return contents, config, directory
    weights = directory / "model.safetensors"
    return safetensors(weights.read_bytes()), weights, directory


@pytest.fixture(params=CASES)
def kind(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    # A model that states a large context would get a table of its positions.
    monkeypatch.setattr(memory_need, "loadable_memory", lambda: 64 << 20)
    path = strategy(request.param, folder)[1]
    before = path.read_bytes()
    yield request.param
    path.write_bytes(before)


def test_a_hostile_file_is_refused_in_one_line_or_harmless(kind: str, folder: Path) -> None:
    fuzz(kind, folder, CASES[kind])


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_hostile_files_are_refused_in_one_line_or_harmless(
    kind: str, folder: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("cases", SOAK * CASES[kind])
    fuzz(kind, folder, SOAK * CASES[kind])


def fuzz(kind: str, folder: Path, num_cases: int) -> None:
    contents, path, model = strategy(kind, folder)
    opened = [0, 0]
    REASONS.clear()

    @settings(
        max_examples=num_cases,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(contents))
    def check(case: Case) -> None:
        path.unlink()  # a new file: the old one may still be mapped
        path.write_bytes(case.content)
        opened[check_model(model)] += 1

    try:
        check()
    except BaseException:
        shutil.copy(path, folder / "failing")  # the smallest that hypothesis found
        raise
    assert kind == "made-up gguf" or min(opened) > num_cases // 50, (opened, REASONS)


def check_model(path: Path) -> bool:
    """Open the model and read all of it; return whether it could be opened."""
    size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
    tracemalloc.start()
    try:
        is_open = read_all(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BASE + MEMORY_FACTOR * size
    return is_open


def read_all(path: Path) -> bool:
    refused(lambda: load_tokenizer(path))
    checkpoint = None

    def open_it() -> None:
        nonlocal checkpoint
        checkpoint = open_checkpoint(path)

    if refused(open_it):
        return False
    assert checkpoint is not None
    assert checkpoint.name is not None and checkpoint.dtype is not None
    assert all(isinstance(token_id, int) for token_id in checkpoint.eos_token_ids)
    refused(lambda: load(checkpoint))
    for name in checkpoint.tensor_names():
        refused(lambda name=name: checkpoint.stored(name))
        refused(lambda name=name: checkpoint.tensor(name))
        refused(lambda name=name: checkpoint.matrix(name))
    return True


def load(checkpoint: Checkpoint) -> None:
    """Load the weights as an engine does."""
    config = EngineConfig(device="cpu", dtype="float32")
    spec = choose_spec(checkpoint, config, BACKENDS, no_progress)
    impl = NativeModels(ModelSpec(path=checkpoint.path, fields={}))
    load_parts(checkpoint, config, BACKENDS, spec, no_progress, impl)


def refused(act: Callable[[], object]) -> bool:
    """Whether it raises ConfigError, whose message then must be one line of readable length."""
    try:
        act()
    except ConfigError as error:
        assert str(error).isprintable() and len(str(error)) < 1000, error
        REASONS.append(str(error))
        return True
    return False
