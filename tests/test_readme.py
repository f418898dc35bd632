"""What the README and the pages that continue it show is true."""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenmill.api.cli import make_parser
from tokenmill.testing.conformance.installed import LoadedPlugin
from tokenmill.testing.conformance.policies import scheduling_policy

from .core.plugin_packages import Packages
from .server_process import RunningServer, running_server
from .terminal import on_terminal

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    name: (ROOT / f"docs/{name}.md").read_text()
    for name in ("install", "features", "index", "library")
}


def blocks(language: str, text: str = README) -> list[str]:
    """The code of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


[PLUGIN] = [block for block in blocks("python") if "hookimpl" in block]
[CLIENT] = [block for block in blocks("python") if "from openai" in block]
PROGRAMS = [block for block in blocks("python") if block not in (PLUGIN, CLIENT)]
"""Each loads the default model: `make check` runs all, each in a process of its own."""
[PACKAGE] = [block for block in blocks("toml") if "tokenmill.plugins" in block]
COMMANDS = [
    line.partition("#")[0].strip()
    for text in (README, *PAGES.values())
    for block in blocks("sh", text)
    for line in block.splitlines()
    if line and not line.startswith(" ")  # else it continues a command
]
COMMANDS += re.findall(r"^\$ (.*)$", README, re.MULTILINE)


def test_it_shows_the_two_commands_first() -> None:
    lines = [line.split("#")[0].strip() for line in blocks("sh")[0].splitlines()]
    assert lines == ["make serve", "make test"]
    assert README.index("```sh\nmake serve") < README.index("\n## ")


def test_its_first_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, which has imported torch already."""
    exec(PROGRAMS[0], {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


@pytest.mark.check
@pytest.mark.parametrize("source", PROGRAMS)
def test_its_programs_run(source: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("tokenmill ")])
def test_its_commands_exist(command: str) -> None:
    make_parser().parse_args(shlex.split(command)[1:])


def test_every_other_command_is_one_that_is_known_here() -> None:
    """A command that no test runs cannot be added unnoticed."""
    assert {command.split()[0] for command in COMMANDS} == {"make", "curl", "pip", "tokenmill"}


def test_its_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {word for c in COMMANDS if c.startswith("make ") for word in c.split()[1:]}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("served")) as found:
        yield found


def here(source: str, server: RunningServer) -> str:
    """An example, for the address of a test's server."""
    assert "http://127.0.0.1:8000" in source
    return source.replace("http://127.0.0.1:8000", server.url)


@pytest.mark.check
def test_curl_gets_an_answer(server: RunningServer) -> None:
    [request] = [block for block in blocks("sh") if block.startswith("curl")]
    assert request in blocks("sh", PAGES["index"])
    done = subprocess.run(
        ["bash", "-c", here(request, server)], capture_output=True, text=True, check=True
    )
    assert "Tokyo" in json.loads(done.stdout)["choices"][0]["message"]["content"]


@pytest.mark.check
def test_serve_says_on_a_terminal_what_is_shown() -> None:
    command = (sys.executable, "-m", "tokenmill", "serve", "--port", "0")
    with on_terminal(command, columns=80, lines=40) as terminal:
        terminal.wait_for("tokenmill chat --url")
        printed = [without_numbers(line) for line in terminal.text().splitlines()]
    [shown] = blocks("text")
    assert shown.startswith("Ready after")
    assert all(without_numbers(line) in printed for line in shown.splitlines())


def without_numbers(line: str) -> str:
    """A line without times, the port and the room in memory, which differ between machines."""
    return re.sub(r"[\d.,]+( requests?\b)?", "N", re.sub(r"(\.1:)\d+", r"\1N", line))


@pytest.mark.check
def test_openai_s_client_streams(server: RunningServer) -> None:
    done = subprocess.run(
        [sys.executable, "-c", here(CLIENT, server)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_fastapi_application_of_the_library_s_page_is_the_example_that_tests_run() -> None:
    [fastapi] = [one for one in blocks("python", PAGES["library"]) if "from fastapi" in one]
    example = ast.parse((ROOT / "examples/fastapi_app.py").read_text())
    known = [ast.unparse(statement) for statement in example.body]
    shown = [ast.unparse(one) for one in ast.parse(fastapi).body if not is_import(one)]
    assert shown
    assert [one for one in known if one in shown] == shown


def is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def test_its_plugin_passes_the_kit(packages: Packages) -> None:
    packages.install("shortest-first", PLUGIN, header="")
    [subject] = LoadedPlugin("shortest-first").subjects()
    scheduling_policy.check_nobody_starves(subject.make)
    scheduling_policy.check_keys_are_tuples_of_numbers(subject.make)
    key = subject.make().key
    request = argparse.Namespace(max_tokens=10, arrival_time=0.0)
    longer = argparse.Namespace(max_tokens=20, arrival_time=0.0)
    assert key(request, 0.0) < key(longer, 0.0)


@pytest.mark.check
def test_its_package_is_installed_and_its_check_prints_what_is_shown(tmp_path: Path) -> None:
    source, installed = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    (source / "pyproject.toml").write_text(PACKAGE)
    (source / "shortest_first.py").write_text(PLUGIN)
    install = f"{sys.executable} -m pip install --no-deps --no-build-isolation --target"
    subprocess.run([*install.split(), installed, source], capture_output=True, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "tokenmill", "plugins", "check", "shortest-first"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={"PYTHONPATH": str(installed), "COLUMNS": "80"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    shown = [line for line in blocks("console")[0].splitlines() if not line.startswith("$")]
    assert {*map(figureless, shown)} <= {*map(figureless, done.stdout.splitlines())}


def figureless(line: str) -> str:
    """A line without figures of time, and without the padding that depends on them."""
    return " ".join(re.sub(r"=+|[\d.]+ ?[mµn]?s\b", " ", line).split())


def test_the_flags_of_the_features_exist() -> None:
    commands = next(
        action.choices
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    known = {name for action in commands["serve"]._actions for name in action.option_strings}
    shown = set(re.findall(r"`(--[a-z-]+)`", PAGES["features"]))
    assert "--max-num-seqs" in shown
    assert shown <= known


def test_the_start_page_gives_the_size_of_the_engine_room() -> None:
    [claimed] = re.findall(
        r"`src/core/engine`\s+plans every step in about ([\d,]+) lines", PAGES["index"]
    )
    files = (ROOT / "src/core/engine").glob("*.py")
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    assert abs(lines - int(claimed.replace(",", ""))) < 0.1 * lines


def test_it_claims_the_speed_that_was_measured() -> None:
    [claimed] = re.findall(r"From (\S+) to (\S+) times the best other engine in bfloat16", README)
    measured = json.loads((ROOT / "benchmarks/results/cpu_peers.json").read_text())["summary"]
    own = measured["tokenmill bf16"]
    peers = [measured[f"{name} bf16"] for name in ("transformers", "vLLM", "llama.cpp")]
    ratios = [
        speed["median"] / max(peer[name]["median"] for peer in peers if name in peer)
        for name, speed in own.items()
    ]
    assert claimed == (f"{min(ratios):.1f}", f"{max(ratios):.1f}")


def test_minutes_and_sizes_of_the_first_answer_are_those_that_were_measured() -> None:
    file = ROOT / "benchmarks/results/first_answer.json"
    measured = json.loads(file.read_text())["first_answer"]
    loaded = measured["bytes_from_network"] + measured["bytes_from_local_wheels"]
    stored = measured["bytes_in_venv"] + measured["bytes_in_caches"]
    for claim, value in {
        r"downloads\s+about (\d+) MB": loaded / 1e6,
        r"needs ([\d.]+) GB of disk": stored / 1e9,
        r"first answer came after\s+(\d+) minutes": measured["answered"] / 60,
    }.items():
        [claimed] = re.findall(claim, README)
        assert float(claimed) == pytest.approx(value, rel=0.25), claim


def test_the_package_has_a_name_and_an_entry_point() -> None:
    package = tomllib.loads(PACKAGE)["project"]
    assert package["entry-points"]["tokenmill.plugins"] == {package["name"]: "shortest_first"}
