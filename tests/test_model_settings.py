"""Settings that change a model as it is published: in a program, and in a file of `serve`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tokenmill import LLM, RequestOutput
from tokenmill.core.config import EngineConfig

from .backends.tiny_checkpoints import TARGET, write_model
from .server_process import running_server

TEMPLATE = "{% for m in messages %}{{ m.content }}!{% endfor %}"
SETTINGS: dict[str, Any] = {
    "hf_overrides": {"rope_theta": 20.0},
    "chat_template": TEMPLATE,
    "override_generation_config": {"max_new_tokens": 12, "temperature": 0},
}
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "num_gpu_blocks_override": 24,
    "disable_log_stats": True,
}
CHAT = [{"role": "user", "content": "ABC" * 6}]


def answer(path: Path, **settings: Any) -> RequestOutput:
    with LLM(str(path), **OPTIONS, **settings) as llm:
        return llm.chat(CHAT)[0]


def test_settings_of_a_program_change_the_model(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny", TARGET, 0)
    found = answer(path, **SETTINGS)
    assert found.prompt_token_ids == (32, 33, 34) * 6 + (0,)
    assert len(found.outputs[0].token_ids) == 12
    fewer = {name: value for name, value in SETTINGS.items() if name != "hf_overrides"}
    assert answer(path, **fewer).outputs[0].token_ids != found.outputs[0].token_ids
    # The files with the same fields are the same model.
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | SETTINGS["hf_overrides"]))
    assert answer(path, **fewer).outputs[0].token_ids == found.outputs[0].token_ids


@pytest.mark.check  # four processes
def test_settings_of_a_file_reach_every_process(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny", TARGET, 0)
    wanted = answer(path, **SETTINGS).outputs[0]
    (tmp_path / "mine.jinja").write_text(TEMPLATE)
    file = tmp_path / "serve.json"  # YAML, too
    settings = SETTINGS | OPTIONS | {"chat_template": str(tmp_path / "mine.jinja")}
    file.write_text(json.dumps(settings | {"model": str(path), "tensor-parallel-size": 2}))
    with running_server(tmp_path, "--config", str(file), "--served-model-name", "x") as server:
        body = {"model": "x", "messages": CHAT, "return_token_ids": True}
        said = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
        assert said["usage"]["completion_tokens"] == 12
        assert said["choices"][0]["token_ids"] == list(wanted.token_ids)


def test_settings_are_equal_in_another_process() -> None:
    """As JSON text and as an object."""
    texts = {name: json.dumps(value) for name, value in SETTINGS.items() if name != "chat_template"}
    assert EngineConfig(**SETTINGS) == EngineConfig(**SETTINGS | texts)
