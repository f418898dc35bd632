"""Settings of vLLM that are accepted without effect: values are checked, and the log says so."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from tests.api.serving import toy_engine
from tokenmill.config import CompilationConfig, CompilationLevel, CompilationMode, CUDAGraphMode
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError


@pytest.mark.parametrize(
    "setting",
    [
        CompilationConfig(level=CompilationLevel.PIECEWISE, cudagraph_capture_sizes=[1, 2, 4]),
        CompilationConfig(mode=CompilationMode.VLLM_COMPILE, max_cudagraph_capture_size=512),
        CompilationConfig(cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE, mode="NONE"),
        CompilationConfig(level=None),
        CompilationLevel.NO_COMPILATION,
        '{"cudagraph_mode": "none"}',
        "3",
    ],
    ids=str,
)
def test_the_forms_of_a_compilation_config_are_accepted(setting: Any) -> None:
    assert EngineConfig(compilation_config=setting).compilation_config == setting


def test_a_copy_in_another_process_is_equal() -> None:
    config = EngineConfig(
        compilation_config=CompilationConfig(
            level=CompilationLevel.PIECEWISE, cudagraph_capture_sizes=(1, 2)
        ),
        cudagraph_capture_sizes=(1, 2),
        limit_mm_per_prompt={"image": {"count": 3}},
    )
    sent = msgspec.msgpack.encode(config)
    assert msgspec.msgpack.decode(sent, type=EngineConfig) == config


@pytest.mark.parametrize(
    "limits",
    ["image=3,video=1", '{"image": 0}', {"audio": {"count": 1, "length": 80}}, {"video": {}}],
    ids=str,
)
def test_the_forms_of_limits_on_images_are_accepted(limits: Any) -> None:
    assert EngineConfig(limit_mm_per_prompt=limits).limit_mm_per_prompt == limits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compilation_config": 4}, "--compilation-config must be a number from 0 to 3, got 4"),
        ({"compilation_config": "x"}, "must be a number or a JSON object, as in '{"),
        ({"compilation_config": "[1]"}, "must be a number or a JSON object, as in '{"),
        ({"compilation_config": {"levl": 3}}, "unknown setting levl .* Did you mean 'level'"),
        ({"compilation_config": {"level": True}}, "level of .* from 0 to 3, got True"),
        ({"compilation_config": {"level": "3"}}, "level of .* from 0 to 3, got '3'"),
        ({"compilation_config": {"mode": "FAST"}}, "unknown mode of .*Known: NONE, STOCK"),
        ({"compilation_config": {"cudagraph_mode": 1}}, "unknown cudagraph_mode of .*: 1"),
        (
            {"compilation_config": {"cudagraph_capture_sizes": [1, 0]}},
            r"cudagraph_capture_sizes of .* positive numbers, got \[1, 0\]",
        ),
        ({"optimization_level": -1}, "--optimization-level must be a number from 0 to 3, got -1"),
        ({"cudagraph_capture_sizes": 8}, "-sizes must be a list of positive numbers, got 8"),
        ({"cudagraph_capture_sizes": "12"}, "must be a list of positive numbers, got '12'"),
        ({"limit_mm_per_prompt": "x"}, "must be a JSON object, as in '{"),
        ({"limit_mm_per_prompt": "image=x"}, "must be a JSON object, as in '{"),
        ({"limit_mm_per_prompt": {"smell": 1}}, "knows image, video, audio, but not 'smell'"),
        ({"limit_mm_per_prompt": {"image": -1}}, "count of image .* at least 0, got -1"),
        ({"limit_mm_per_prompt": {"image": {"width": 0}}}, "width of image .* at least 1, got 0"),
        ({"limit_mm_per_prompt": {"image": {"length": 1}}}, "image has count, width, height, but"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**options)


def warnings(caplog: pytest.LogCaptureFixture, **options: Any) -> dict[str, str]:
    """The reasons that starting an engine on a CPU logs, by flag."""
    caplog.clear()
    caplog.set_level(logging.WARNING, logger="tokenmill")

    async def start() -> None:
        async with toy_engine(**options):
            pass

    asyncio.run(start())
    found = [vars(r) for r in caplog.records if r.msg == "setting_without_effect"]
    return {line["setting"]: line["reason"] for line in found}


def test_each_setting_without_effect_is_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert warnings(caplog, enforce_eager=False, swap_space=0, max_num_seqs=8) == {}
    found = warnings(
        caplog,
        enforce_eager=True,
        compilation_config={"level": 3},
        optimization_level=0,
        cudagraph_capture_sizes=[1, 2],
        limit_mm_per_prompt={"image": 1},
        mm_processor_kwargs={},
        gpu_memory_utilization=0.5,
        swap_space=4,
    )
    assert len(found) == 8
    assert "CUDA graphs" in found["--enforce-eager"]
    assert "only text" in found["--limit-mm-per-prompt"]
    assert "--kv-cache-memory" in found["--gpu-memory-utilization"]
    assert "--preemption-mode swap" in found["--swap-space"]
