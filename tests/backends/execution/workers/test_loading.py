"""What a worker process does while it loads, when it need not give signs of life yet."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from tests.backends.tiny_checkpoints import TARGET, write_model
from tokenmill.assembly import load_rank
from tokenmill.backends.execution.workers.messages import StartRank
from tokenmill.backends.grammar.llguidance.backend import LLGuidance
from tokenmill.core.config import EngineConfig
from tokenmill.core.interfaces import no_progress


def test_the_grammar_backend_is_built_because_it_would_stop_the_signs_of_life_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    build = LLGuidance.__init__
    monkeypatch.setattr(LLGuidance, "__init__", lambda *args: (built.append(args), build(*args))[1])
    path = write_model(tmp_path / "m", TARGET, 1)
    fields = json.loads((path / "config.json").read_bytes()) | {"eos_token_id": 1}
    (path / "config.json").write_text(json.dumps(fields))  # grammars need a token that ends answers
    start = StartRank(
        rank=0,
        size=1,
        local_rank=0,
        local_size=1,
        rendezvous=None,
        exchange=None,
        num_threads=torch.get_num_threads(),
        load_rank="",
        config=EngineConfig(model=str(path), device="cpu", num_gpu_blocks_override=8),
        log_level=logging.INFO,
    )
    model = load_rank(start, no_progress)
    try:
        assert len(built) == 1
    finally:
        model.executor.close()
