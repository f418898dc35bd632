"""Judges decoder classes of transformers, and writes benchmarks/results/decoders.json.

python -m tests.soak.decoder_report TYPE ... replaces the results of single types; without types, it
adds those that are missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.oracle.decoder_sweep import Judgement, judge
from tests.oracle.tiny_decoders import MODEL_TYPES
from tests.soak_report import commit

RESULTS = Path(__file__).parents[2] / "benchmarks/results/decoders.json"
AT_ONCE = 2
"""Child processes. Each needs about 1 GB."""


def sweep(model_types: Iterable[str]) -> dict[str, dict[str, Judgement]]:
    """Judge types of models, and write each result when it is there; returns all of them."""
    found = {}
    at = commit()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        judging = {threads.submit(judge, one): one for one in model_types}
        for done in as_completed(judging):
            found[judging[done]] = done.result()
            _add(judging[done], done.result(), at)
            print(judging[done], done.result(), flush=True)
    return found


def _missing() -> list[str]:
    done = json.loads(RESULTS.read_text("utf-8"))["models"] if RESULTS.exists() else {}
    return [one for one in MODEL_TYPES if one not in done]


def _add(model_type: str, judgements: dict[str, Judgement], at: str) -> None:
    written: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    models = written.get("models", {})
    models[model_type] = {dtype: _described(one) for dtype, one in judgements.items()} | {
        "commit": at
    }
    content = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "models": dict(sorted(models.items())),
    }
    RESULTS.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _described(judgement: Judgement) -> dict[str, Any]:
    """The fields that say something."""
    return {name: value for name, value in asdict(judgement).items() if value}


if __name__ == "__main__":
    sweep(sys.argv[1:] or _missing())
