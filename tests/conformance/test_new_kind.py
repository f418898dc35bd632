"""A new kind needs a row and a suite: flag, tables, lists, options and checks follow from them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.core.plugin_packages import Packages

ROOT = Path(__file__).parents[2]
ROW = """
GREETER: Kind[Any] = Kind(
    name="greeter",
    does="greetings",
    suite="policies.greeter:GreeterConformance",
    runs="engine",
    needs=("greet",),
    switch="speculative_adaptive",
    flag=setting(None, "policy that greets", group="scheduling"),
)


KINDS:"""
SUITE = """
from ..suites import suite

def check_it_greets(greeter):
    assert greeter().greet() == "Hello"

@suite
class GreeterConformance:
    pass
"""
PLUGIN = """
from dataclasses import dataclass, field

@dataclass
class Options:
    word: str = field(default="Hello", metadata={"help": "the greeting"})

class Greeter:
    def __init__(self, options):
        self.word = options.word

    def greet(self):
        return self.word

class Shout:
    def greet(self):
        return "HELLO"

@hookimpl
def register(registry):
    registry.offer(kinds.GREETER, "plain", Greeter, options=Options, switch=False)
    registry.offer(kinds.GREETER, "loud", Shout, switch=True)
    registry.offer(kinds.GREETER, "wrong", dict)
"""
SETTINGS = """
[plugins]
enable = ["acme-greeter"]
[greeter]
use = "plain"
word = "Good day"
"""
CHECK = """
import json, sys
from tokenmill.api.cli import make_parser
from tokenmill.api.commands.flags.engine import engine_config
from tokenmill.core.config import EngineConfig
from tokenmill.core.errors import ConfigError
from tokenmill.core.host.building import build_choice
from tokenmill.core.host.plugin_host import PluginHost

def greeting(**options):
    host = PluginHost.load(EngineConfig.from_options(**options))
    return build_choice(host._built.plugins, host.choice("greeter")).greet()

def refusal(**options):
    try:
        return greeting(**options)
    except ConfigError as error:
        return str(error)

flags = make_parser().parse_args(["serve", "--greeter", "loud"])
print(json.dumps({
    "flag": engine_config(flags).chosen("greeter"),
    "table": greeting(),
    "named": greeting(greeter="loud"),
    "switched": greeting(speculative_adaptive=True),
    "lacks": refusal(greeter="wrong"),
    "unknown": refusal(greeter="plane"),
    "names": PluginHost.load(EngineConfig()).names["greeter"],
}))
"""


@pytest.fixture
def environment(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that runs a copy of tokenmill with one kind more."""
    folder = tmp_path_factory.mktemp("copy")
    copy = folder / "tokenmill"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("csrc"))  # with bytecode
    rows = copy / "core/kinds.py"
    rows.write_text(rows.read_text().replace("\nKINDS:", ROW, 1))
    (copy / "testing/conformance/policies/greeter.py").write_text(SUITE)
    packages.install("acme-greeter", PLUGIN)
    packages.write_settings(SETTINGS)
    return os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{packages.folder}"}


def test_everything_follows_from_the_row_and_the_suite(environment: dict[str, str]) -> None:
    def run(*arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, env=environment
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    found = json.loads(run("-c", CHECK))
    assert found.pop("lacks").endswith("lacks greet: its factory returned {}")
    assert "no greeter named 'plane'. Did you mean 'plain'? Known: loud," in found.pop("unknown")
    assert found == {
        "flag": "loud",
        "table": "Good day",
        "named": "HELLO",
        "switched": "HELLO",
        "names": "plain",
    }
    assert "--greeter NAME" in run("-m", "tokenmill", "serve", "--help=scheduling")
    listed = run("-m", "tokenmill", "plugins", "list")
    rows = [line.split()[:3] for line in listed.splitlines()]
    assert ["greeter", "provisional", "plain*,"] in rows
    shown = run("-m", "tokenmill", "plugins", "show", "acme-greeter")
    assert "the greeting" in shown and "Good day" in shown
    script = dedent(f"""
        import runpy
        print(runpy.run_path({str(ROOT / "scripts/docs/write_kinds.py")!r})["page"]())
    """)
    assert "| greetings | `GREETER` | `--greeter` | engine, on its thread | provisional |" in run(
        "-c", script
    )
    checked = run("-m", "tokenmill", "plugins", "check", "--verbose", "acme-greeter", status=1)
    assert "TestGreeter::test_it_greets[loud] FAILED" in checked
    assert "TestGreeter::test_it_greets[plain]" in checked
    assert "greeter 'plain': its contract is provisional" in checked
