"""A hook that ends or blocks the engine's process is named, and counted beyond the restart."""

from __future__ import annotations

import pytest

from tokenmill.core.errors import EngineStoppedError
from tokenmill.core.requests.sampling_params import SamplingParams

from ..core.shell.test_engine_shell import in_event_loop
from .toy_process import toy_process, until


@in_event_loop
async def test_an_engine_that_lost_its_device_is_not_said_to_have_ended_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with toy_process() as engine:
        with pytest.raises(EngineStoppedError):
            async for _ in engine.generate([ord("E"), 2], SamplingParams(max_tokens=2)):
                pass
        await until(lambda: [r for r in caplog.records if r.msg == "engine_lost"])
        [reason] = [vars(r)["reason"] for r in caplog.records if r.msg == "engine_lost"]
        assert reason == "the device fell off the bus"


@pytest.mark.parametrize("fault", ["crash", "loop"])
@in_event_loop
async def test_the_hook_that_ran_is_in_the_log_and_in_the_list_of_plugins(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with toy_process(stall_timeout=0.5) as engine:
        with pytest.raises(EngineStoppedError):
            await engine.submit([1, 2], SamplingParams(max_tokens=2), user=fault)
        await until(lambda: engine.running.replicas.serving())
        await engine.refresh()
        [reason] = [vars(r)["reason"] for r in caplog.records if r.msg == "engine_lost"]
        assert "in plugin 'FaultyPlugin', hook 'admit'" in reason
        [plugin] = [one for one in engine.plugins() if one.name == "FaultyPlugin"]
        hooks = [one for one in engine.hook_stats() if one.plugin == "FaultyPlugin"]
        [admit] = [one for one in hooks if one.hook == "admit"]
        assert (plugin.failures, admit.failures) == (1, 1)
        samples = [
            line
            for line in engine.render_metrics().decode().split("\n")
            if "plugin_hook_failures_total{" in line
            and 'plugin="FaultyPlugin",hook="admit"' in line
        ]
        assert sum(float(line.split()[-1]) for line in samples) == 1
        outputs = [o async for o in engine.generate([1, 2], SamplingParams(max_tokens=2))]
        assert outputs[-1].finished
