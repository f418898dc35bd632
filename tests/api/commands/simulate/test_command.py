"""`tokenmill simulate compare | measure`, as typed."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.chosen import backends_of
from tests.backends.random_weights import random_checkpoint
from tokenmill import assembly
from tokenmill.api.cli import main
from tokenmill.backends.execution.in_process import ModelExecutor
from tokenmill.core.config import EngineConfig
from tokenmill.core.host.plugin_host import PluginHost
from tokenmill.core.interfaces import Progress
from tokenmill.core.shell.local_engine import EngineParts
from tokenmill.planning.step_time import read_step_times
from tokenmill.planning.workload import SyntheticWorkload
from tokenmill.testing import ToyTokenizer

from ....backends.tiny import CONFIG
from ...forked_commands import run_forked
from ...test_cli import check_one_line

SMALL = ("--num-prompts", "8", "--random-input-len", "300", "--random-output-len", "16")


def test_compare_shows_both_schedulers_and_warns_of_step_times_that_are_not_yours() -> None:
    done = run_forked("simulate", "compare", *SMALL, "--request-rate", "2")
    assert done.returncode == 0, done.stderr
    assert "warning: these are BUNDLED step times" in done.stderr
    assert "BUNDLED" in done.stdout and "simulate measure" in done.stdout
    assert "simulating scheduler=prefill-first: done" in done.stderr
    rows = {line[:26].strip(): line[26:].split() for line in done.stdout.splitlines()}
    header = next(line.split() for line in done.stdout.splitlines() if "chunked" in line)
    assert header == ["scheduler", "chunked", "prefill-first"]
    assert rows["completed"] == ["8", "8"] and rows["refused"] == ["0", "0"]
    for row in ("TTFT p99", "ITL p99", "E2E p50", "preemptions by swap", "prefix-hit rate"):
        assert row in rows


def test_json_is_the_same_for_the_same_seed_and_alone_on_stdout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def compare(seed: str) -> str:
        varied = ("--vary", "max_num_batched_tokens=64,256", "--vary", "scheduler=chunked,default")
        command = ["simulate", "compare", "--json", *SMALL, *varied, "--seed", seed]
        assert main(command) == 0
        return capsys.readouterr().out

    first = compare("1")
    assert first == compare("1") != compare("2")
    document = json.loads(first)
    assert document["step_time"]["is_bundled"] and document["workload"]["num_requests"] == 8
    assert [result["settings"] for result in document["results"]] == [
        {"max_num_batched_tokens": tokens, "scheduler": name}
        for tokens in (64, 256)
        for name in ("chunked", "default")
    ]
    assert all(result["completed"] == 8 for result in document["results"])


def test_policies_that_never_decided_differently_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With short prompts that come one after the other, the order of the queue has no effect."""
    quiet = ("--num-prompts", "3", "--random-output-len", "4", "--request-rate", "0.1")
    budgets = ("--vary", "max_num_batched_tokens=128,2048,4096", "--scheduler", "chunked")
    command = ["simulate", "compare", *quiet, *budgets]
    assert main(command) == 0
    shown = capsys.readouterr().out
    [line] = [line for line in shown.splitlines() if "never decided differently" in line]
    assert line.endswith(": max_num_batched_tokens=2048 | max_num_batched_tokens=4096")
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["same_decisions"] == [[1, 2]]
    num_steps = document["results"][1]["num_steps"]
    assert f"in all {num_steps} steps" in line


def test_compare_loads_no_torch() -> None:
    code = (
        "import sys; from tokenmill.api.cli import main;"
        f"main(['simulate', 'compare', '--json', *{SMALL!r}]);"
        "print(sorted({'torch', 'transformers', 'numpy'} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_a_recorded_workload_is_served_and_what_was_refused_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "load.jsonl"
    lines = [{"num_prompt_tokens": 20, "max_tokens": 5, "at": n, "who": "me"} for n in range(3)]
    lines.append({"num_prompt_tokens": 9000, "max_tokens": 5, "at": 9})
    path.write_text("\n".join(map(json.dumps, lines)))
    command = ["simulate", "compare", "--workload", str(path), "--scheduler", "chunked"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "ignored fields: who" in shown.err
    assert "4 requests in 9.0 s" in shown.out
    assert "1 refused (never fits), for example: " in shown.out and "9000" in shown.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--vary", "schedular=a"], ["schedular", "scheduler"]),
        (["--vary", "scheduler=chunked,chunkd"], ["chunkd", "chunked"]),
        (["--vary", "max_num_seqs=0,4"], ["--max-num-seqs", "0"]),
        (["--step-time", "/no/such/file"], ["/no/such/file"]),
        (["--workload", "/no/such/file"], ["/no/such/file"]),
        (["--workload", __file__], ["test_command.py", "line 1"]),
        (["--workload", "x", "--num-prompts", "3"], ["--num-prompts", "--workload"]),
        (["--request-rate", "0"], ["--request-rate"]),
        (["--scheduler", "chunked", "--vary", "scheduler=chunked"], ["--scheduler"]),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line(arguments: list[str], words: list[str]) -> None:
    check_one_line(run_forked("simulate", "compare", *arguments), 1, *words)


def test_a_rate_beside_recorded_times_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text('{"num_prompt_tokens": 20, "max_tokens": 5, "at": 0}')
    command = ["simulate", "compare", "--workload", str(path), "--request-rate", "1"]
    assert main(command) == 1
    assert "--request-rate" in capsys.readouterr().err


def test_help_names_the_verbs_and_the_flags() -> None:
    assert "compare" in run_forked("simulate", "--help").stdout
    text = run_forked("simulate", "compare", "--help-all").stdout
    for flag in ("--vary", "--step-time", "--workload", "--request-rate", "--burstiness",
                 "--num-prompts", "--random-prefix-len", "--num-gpu-blocks-override",
                 "--preemption-mode", "--plugins-file", "--seed"):  # fmt: skip
        assert flag in text
    assert "--dtype" not in text
    assert "--dtype" in run_forked("simulate", "measure", "--help").stdout


def test_help_names_the_defaults_of_a_random_workload() -> None:
    text = " ".join(run_forked("simulate", "compare", "--help").stdout.split())
    for field in dataclasses.fields(SyntheticWorkload):
        about = text.partition(f" --{field.name.replace('_', '-')}")[2]
        assert about.partition("(default: ")[2].startswith(f"{field.default}"), field.name


def test_measure_writes_a_file_that_compare_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a random model of two layers, on the real executor and in the real loop."""

    def build_tiny(config: EngineConfig, progress: Progress) -> EngineParts:
        plugins = PluginHost.load(config)
        executor = ModelExecutor.from_checkpoint(
            random_checkpoint(CONFIG, seed=10),
            config,
            backends_of(plugins),
            progress,
            swaps=plugins.uses_swap,
        )
        return EngineParts(
            executor=executor, tokenizer=ToyTokenizer(CONFIG.vocab_size), plugins=plugins
        )

    monkeypatch.setattr(assembly, "build_parts", build_tiny)
    path = tmp_path / "times.json"
    flags = ["--seconds", "0.1", "--num-gpu-blocks-override", "512", "--swap-space", "0.01"]
    assert main(["simulate", "measure", "-o", str(path), "--dtype", "float32", *flags]) == 0
    shown = capsys.readouterr()
    assert f"written to {path}" in shown.out and "median error" in shown.out
    assert "measuring steps: done" in shown.err
    times = read_step_times(path)
    assert times.machine["clock"] == "wall"
    assert times.model.dtype == "float32" and times.machine["threads"]
    fitted = times.step_time  # on a busy machine, all of the overhead may be that per request
    assert fitted.overhead_per_step + fitted.overhead_per_request > 0
    assert main(["simulate", "measure", "-o", str(path), "--json", *flags]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(path.read_text())
    load = ["--num-prompts", "4", "--random-input-len", "50", "--random-output-len", "9"]
    assert main(["simulate", "compare", "--step-time", str(path), *load]) == 0
    shown = capsys.readouterr()
    assert f"step times from {path}" in shown.out and "BUNDLED" not in shown.err


def test_measure_refuses_a_folder_that_is_not_there_before_it_loads_anything() -> None:
    done = run_forked("simulate", "measure", "-o", "/no/such/folder/times.json")
    check_one_line(done, 1, "/no/such/folder")
    assert "loading" not in done.stderr
