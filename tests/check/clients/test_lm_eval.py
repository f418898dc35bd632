"""lm-eval scores texts through the server as transformers does on the same weights."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenmill.backends.weights.default_model import find_default_model

from ...oracle.reference import Reference
from .conftest import Target
from .environments import RUN_SECONDS, client_environment, python_with

QUESTIONS = (
    ("The capital of France is", (" Paris", " a banana", " Rome")),
    ("Water freezes at zero degrees", (" Celsius", " apples")),
    ("One, two, three,", (" four", " seven thousand", " blue")),
)
TASK = """
task: questions
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


def test_log_likelihoods_are_those_of_transformers(target: Target, tmp_path: Path) -> None:
    """It tokenizes through /tokenizer_info and /tokenize, and scores echoed prompts."""
    found = run_lm_eval(target, tmp_path)
    reference = Reference(find_default_model())
    num_choices = 0
    for question, choices in QUESTIONS:
        scores = found[question]
        assert len(scores) == len(choices)
        for choice, score in zip(choices, scores, strict=True):
            assert score == pytest.approx(log_likelihood(reference, question, choice), abs=1e-3)
            num_choices += 1
        assert max(scores) == scores[0], "the first choice is the right one"
    assert num_choices == 8


def run_lm_eval(target: Target, folder: Path) -> dict[str, list[float]]:
    """The log-likelihood of each choice, by question."""
    data, output = folder / "questions.json", folder / "output"
    lines = [json.dumps({"question": text, "choices": choices}) for text, choices in QUESTIONS]
    data.write_text("\n".join(lines))
    (folder / "questions.yaml").write_text(TASK.format(data=data))
    settings = {
        "model": target.model,
        "base_url": f"{target.url}/v1/completions",
        "tokenizer_backend": "remote",
        "num_concurrent": 2,
        "max_retries": 1,
    }
    command = [
        str(python_with("lm_eval[api]==0.4.13")),
        *("-m", "lm_eval", "run", "--model", "local-completions", "--tasks", "questions"),
        *("--model_args", ",".join(f"{name}={value}" for name, value in settings.items())),
        *("--include_path", str(folder), "--output_path", str(output), "--log_samples"),
    ]
    environment = client_environment() | {"HF_HOME": str(folder / "hub")}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=RUN_SECONDS
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    (samples,) = output.rglob("samples_questions_*.jsonl")
    return {sample["doc"]["question"]: scores_of(sample) for sample in read_lines(samples)}


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def scores_of(sample: Any) -> list[float]:
    """Answers are pairs of a log-likelihood and whether greedy decoding would give the choice."""
    return [float(score) for score, _ in sample["filtered_resps"]]


def log_likelihood(reference: Reference, question: str, choice: str) -> float:
    prompt = reference.tokenizer(question)["input_ids"]
    whole = reference.tokenizer(question + choice)["input_ids"]
    with torch.inference_mode():
        logits_tv = reference.model(torch.tensor([whole])).logits[0].float()
    logprobs_tv = logits_tv.log_softmax(dim=-1)
    places = range(len(prompt), len(whole))
    return float(sum(logprobs_tv[place - 1, whole[place]] for place in places))
