"""The comparison, with small programs for engines."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from compare import EngineFailed, choose, measure_quietly, read_rounds, write
from engines import HERE, NAMES, PRECISIONS, Engine, engines

ENGINE = """
import argparse, os, sys
sys.path.append({folder!r})
from worker import say

parser = argparse.ArgumentParser()
parser.add_argument("--workloads", nargs="+")
names = parser.parse_known_args()[0].workloads
with open({log!r}, "a") as log:
    print(*names, os.environ["OMP_NUM_THREADS"], file=log)
print("an engine's own words")
for name in names:
    say("begin", name)
    say("end", name, tokens_per_second=7.0)
"""


@pytest.fixture(autouse=True)
def any_file_is_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compare.find_default_model", lambda: Path(__file__))


@pytest.fixture
def args(tmp_path: Path) -> Namespace:
    return Namespace(
        peers=tmp_path / "peers",
        models=None,
        engines=list(NAMES),
        precisions=list(PRECISIONS),
        workloads=["single", "mixed", "prefill-512"],
        threads=2,
        output_len=4,
        rounds=1,
        attempts=3,
        max_foreign=float("inf"),
        emulated=False,
        json=tmp_path / "results" / "peers.json",
    )


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[str], Engine]:
    def make(source: str) -> Engine:
        program = tmp_path / "engine.py"
        program.write_text(source.format(folder=str(HERE), log=str(tmp_path / "log")))
        return Engine(
            "tokenmill",
            "bf16",
            str(program),
            Path(sys.executable),
            "tokenmill",
            tmp_path,
            workloads=("single", "mixed"),
        )

    return make


def test_an_engine_measures_the_workloads_that_it_knows(
    args: Namespace, make_engine: Callable[[str], Engine], tmp_path: Path
) -> None:
    found = measure_quietly(make_engine(ENGINE), args, round_number=4)

    assert [(m.workload, m.round, m.figures) for m in found] == [
        ("single", 4, {"tokens_per_second": 7.0}),
        ("mixed", 4, {"tokens_per_second": 7.0}),
    ]
    assert (tmp_path / "log").read_text() == "single mixed 2\n"


def test_what_never_gets_quiet_is_measured_again_and_kept(
    args: Namespace, make_engine: Callable[[str], Engine], tmp_path: Path
) -> None:
    args.max_foreign = -1.0

    found = measure_quietly(make_engine(ENGINE), args, round_number=0)

    assert [m.workload for m in found] == ["single", "mixed"]
    assert (tmp_path / "log").read_text() == "single mixed 2\n" * args.attempts


def test_a_failed_engine_tells_its_last_words(
    args: Namespace, make_engine: Callable[[str], Engine]
) -> None:
    with pytest.raises(EngineFailed, match="no such weights"):
        measure_quietly(make_engine("raise SystemExit('no such weights')"), args, 0)


def test_rounds_of_an_earlier_run_stay(
    args: Namespace, make_engine: Callable[[str], Engine]
) -> None:
    engine = make_engine(ENGINE)
    measurements = measure_quietly(engine, args, 0)
    assert read_rounds(args) == []

    write(args, [engine], measurements)

    assert read_rounds(args) == measurements
    content = json.loads(args.json.read_text())
    assert content["summary"]["tokenmill bf16"]["mixed"]["median"] == 7.0
    assert content["versions"]["tokenmill"].startswith("tokenmill ")


def test_rounds_with_other_settings_are_not_joined(args: Namespace) -> None:
    write(args, [], [])
    args.output_len = 128

    with pytest.raises(SystemExit, match="rounds with other settings"):
        read_rounds(args)

    args.rounds = 0  # only to show them
    assert read_rounds(args) == []


def test_peers_that_are_not_installed_are_said_and_left_out(
    args: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {engine.name for engine in choose(args)} == {"tokenmill", "tokenmill HTTP"}
    assert "left out: vLLM bf16" in capsys.readouterr().err.replace("\n", "")


def test_engines_and_precisions_can_be_chosen(args: Namespace) -> None:
    args.engines, args.precisions = ["tokenmill"], ["4-bit"]

    assert [engine.label for engine in choose(args)] == ["tokenmill 4-bit"]


def test_other_gguf_files_are_compared_by_their_names(args: Namespace) -> None:
    args.peers.mkdir()
    (args.peers / "0.6B-Q8_0.gguf").touch()
    args.models = ["0.6B-Q8_0", "0.6B-Q6_K"]

    chosen = list(choose(args))

    assert [engine.label for engine in chosen] == ["tokenmill 0.6B-Q8_0"]
    assert str(args.peers / "0.6B-Q8_0.gguf") in chosen[0].command(2, ["single"], 4)


def test_every_engine_has_a_program_and_a_name_that_can_be_chosen(tmp_path: Path) -> None:
    found = engines(tmp_path, tmp_path)

    assert {engine.name for engine in found} == set(NAMES)
    assert {engine.precision for engine in found} == set(PRECISIONS)
    assert all((HERE / engine.program).is_file() for engine in found)
    assert replace(found[0], distribution="pytest").version.startswith("pytest ")
