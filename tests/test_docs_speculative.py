"""docs/speculative.md is true: commands, options and metrics exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tokenmill.api.cli import make_parser
from tokenmill.api.commands.flags.engine import engine_config
from tokenmill.core.config import EngineConfig
from tokenmill.core.contract.registry import PluginContext
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.plugins.observers.prometheus import PrometheusMetrics

from .plugins.samples import started, step_done

TEXT = (Path(__file__).parents[1] / "docs/speculative.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^tokenmill .*$", TEXT, re.MULTILINE)
SETTINGS = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
METRICS = set(re.findall(r"^\| `(spec_\w+)", TEXT, re.MULTILINE))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_makes_a_draft_model_or_switches_speculation_on(command: str) -> None:
    words = shlex.split(command, comments=True)
    config = engine_config(make_parser().parse_args(words[1:]))
    host = PluginHost.load(config)
    is_on = host.names["speculative_method"] in ("ngram", "draft-model")
    assert is_on is (words[1] != "draft")


def test_the_settings_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "plugins.toml").write_text(SETTINGS[0])
    host = PluginHost.load(EngineConfig(plugins_file=str(tmp_path / "plugins.toml")))
    assert host.names["speculative_method"] == "ngram"


def test_every_metric_is_there() -> None:
    metrics = PrometheusMetrics(PluginContext(config=EngineConfig()))
    metrics.on_started(started())
    metrics.on_step(step_done(accepted_tokens_per_pos=(1,)))
    text = metrics.render_metrics().decode()
    assert METRICS and all(f"tokenmill:{name}_total{{" in text for name in METRICS)
