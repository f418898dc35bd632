"""Loading: what is checked before the weights are read, what the engine is told, and the end."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tests.backends.chosen import backends_with
from tests.backends.random_weights import random_checkpoint
from tokenmill.assembly import build_parts
from tokenmill.backends.attention.base import AttentionSpec
from tokenmill.backends.attention.pair import BackendPair
from tokenmill.backends.attention.torch.backend import TorchAttention
from tokenmill.backends.execution import in_process
from tokenmill.backends.execution.in_process import ModelExecutor, build_cpu_library
from tokenmill.backends.running.runner import ModelRunner
from tokenmill.backends.weights.checkpoint import Checkpoint
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError, DeviceError
from tokenmill.core.interfaces import Executor, no_progress
from tokenmill.core.plan import Grant, RequestStart, StepPlan

from ..tiny import CONFIG, GREEDY, dense_tokens, make_prompt


class Unreadable:
    """A checkpoint whose weights must not be asked for."""

    def __init__(self) -> None:
        self._checkpoint = random_checkpoint(CONFIG, 5)

    def __getattr__(self, name: str) -> Any:
        assert name not in ("tensor", "tensor_names"), "the weights were read"
        return getattr(self._checkpoint, name)


class Picky(TorchAttention):
    name = "picky"

    @classmethod
    def reasons_against(cls, spec: AttentionSpec) -> list[str]:
        return ["it is Monday", f"head size {spec.head_size} is odd"]


def load(checkpoint: Any = None, **options: Any) -> ModelExecutor:
    defaults: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_gpu_blocks_override": 20}
    config = EngineConfig.from_options(**defaults | options)
    return ModelExecutor.from_checkpoint(
        cast(Checkpoint, checkpoint or random_checkpoint(CONFIG, 5)),
        config,
        backends_with(TorchAttention),
        no_progress,
    )


def prefill(prompt: tuple[int, ...]) -> StepPlan:
    start = RequestStart(
        engine_id="a",
        token_ids=prompt,
        num_prompt_tokens=len(prompt),
        sampling_params=GREEDY,
        seed=0,
        stop_token_ids=(),
    )
    grant = Grant(
        engine_id="a", start=0, num_tokens=len(prompt), new_block_ids=((3, 1),), samples=True
    )
    return StepPlan(step_id=1, starts=(start,), grants=(grant,))


def test_a_loaded_model_says_what_it_is_and_runs_plans() -> None:
    executor: Executor = load()
    info = executor.info
    assert (info.name, info.architecture) == ("random-LlamaForCausalLM", "LlamaForCausalLM")
    assert (info.dtype, info.device, info.attention_backend) == ("float32", "cpu", "torch")
    assert (info.vocab_size, info.max_model_len, info.eos_token_ids) == (192, 256, ())
    assert (info.block_size, info.num_blocks, info.num_host_blocks) == (16, 20, 0)
    assert info.kv_bytes_per_block == 4096 and info.sampling_defaults == {}
    prompt = make_prompt(30, 1)
    assert executor.run(prefill(prompt)).token_ids == (dense_tokens(prompt, 1),)
    executor.close()


def test_progress_is_reported_while_weights_load() -> None:
    seen: list[tuple[str, float]] = []
    ModelExecutor.from_checkpoint(
        random_checkpoint(CONFIG, 5),
        EngineConfig(device="cpu", num_gpu_blocks_override=1),
        backends_with(TorchAttention),
        lambda stage, part: seen.append((stage, part)),
    )
    assert seen[0][1] == 0.0 and seen[-3:] == [
        ("loading weights", 1.0), ("warming up", 0.0), ("warming up", 1.0)]  # fmt: skip


def test_host_blocks_are_there_only_for_an_engine_that_swaps() -> None:
    config = EngineConfig(
        device="cpu", num_gpu_blocks_override=4, swap_space=2**-10, dtype="float32"
    )
    executor = ModelExecutor.from_checkpoint(
        random_checkpoint(CONFIG, 5), config, backends_with(TorchAttention), no_progress, swaps=True
    )
    assert executor.info.num_host_blocks == 2**20 // 4096


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"dtype": "float16"},
            "--dtype float16 keeps .* but this model implementation",
        ),
        ({"device": "tpu"}, "--device must be auto, cpu or cuda"),
        ({"max_model_len": 257}, "--max-model-len is 257, but the model was made for 256 tokens"),
        (
            {"num_gpu_blocks_override": None, "kv_cache_memory": 4095},
            "would get 4095 bytes .* raise --kv-cache-memory to 4096",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_weights_are_read(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(Unreadable(), **options)


def test_the_model_s_own_limit_may_be_named() -> None:
    assert load(max_model_len=256).info.max_model_len == 256


def test_swap_space_that_is_not_free_is_refused_before_the_weights_are_read() -> None:
    config = EngineConfig(device="cpu", num_gpu_blocks_override=4, swap_space=1e9)
    with pytest.raises(ConfigError, match="--swap-space asks for 1e"):
        ModelExecutor.from_checkpoint(
            cast(Checkpoint, Unreadable()),
            config,
            backends_with(TorchAttention),
            no_progress,
            swaps=True,
        )


def test_every_reason_of_an_attention_backend_is_told_before_the_weights_are_read() -> None:
    with pytest.raises(
        ConfigError, match="'picky' cannot serve this model: it is Monday; head size 8 is odd"
    ):
        ModelExecutor.from_checkpoint(
            cast(Checkpoint, Unreadable()),
            EngineConfig(device="cpu"),
            backends_with(Picky),
            no_progress,
        )


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float32"])
def test_the_cpu_library_is_built_first_where_its_products_may_be_used(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("tokenmill.backends.cpu.native.library.load_library", seen.append)
    build_cpu_library(EngineConfig(dtype=dtype, device="cpu"), no_progress)
    assert seen == ([] if dtype == "float32" else [no_progress])


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    config = EngineConfig(model=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match=r"no model at .*nothing"):
        build_parts(config, no_progress)


class Recorder(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """What goes through the "tokenmill.model" logger."""
    logger, recorder = logging.getLogger("tokenmill.model"), Recorder()
    level = logger.level
    logger.addHandler(recorder)
    logger.setLevel(logging.INFO)
    yield recorder.records
    logger.removeHandler(recorder)
    logger.setLevel(level)


def test_one_log_event_tells_where_the_memory_went(records: list[logging.LogRecord]) -> None:
    load(num_gpu_blocks_override=1000)
    (record,) = [one for one in records if one.getMessage() == "model_loaded"]
    fields = vars(record)
    assert (fields["num_blocks"], fields["kv_cache_mib"], fields["weights_mib"]) == (1000, 3, 0)
    assert fields["free_mib"] > 0 and fields["swap_space_mib"] == 0


class Broken:
    """A runner whose device fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def run(self, plan: StepPlan) -> None:
        raise self._error


def test_an_error_of_the_device_itself_ends_the_engine_and_others_do_not() -> None:
    def run(error: Exception) -> None:
        executor = ModelExecutor(load().info, cast(ModelRunner, Broken(error)))
        executor.run(StepPlan(step_id=1))

    with pytest.raises(DeviceError, match="the device failed and must be restarted: an illegal"):
        run(torch.AcceleratorError("an illegal memory access was encountered"))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        run(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError, match="planted"):
        run(RuntimeError("planted"))


def test_a_closed_executor_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = load()
    weights = weakref.ref(executor._runner)
    held: list[object] = []
    monkeypatch.setattr(in_process, "return_free_memory", lambda: held.append(weights()))
    executor.close()
    assert held == [None], "memory is given back when nothing holds it"
    executor.close()
    with pytest.raises(AssertionError, match="closed"):
        executor.run(prefill((1, 2)))


def test_two_attention_backends_may_share_the_work() -> None:
    config = EngineConfig.from_options(device="cpu", dtype="float32", num_gpu_blocks_override=20)
    executor = ModelExecutor.from_checkpoint(
        random_checkpoint(CONFIG, 5),
        config,
        backends_with(BackendPair(TorchAttention, TorchAttention)),
        no_progress,
    )
    assert executor.info.attention_backend == "torch,torch"
    plan = prefill((5, 6, 7))
    assert executor.run(plan).token_ids == load().run(plan).token_ids
