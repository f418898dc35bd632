"""Sets of options: how they are read, and what they make of a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenmill.bench.sweeping.parameters import Parameters, pairs, read_links, read_parameters
from tokenmill.core.errors import ConfigError

COMMAND = ["serve", "--port", "8000", "model", "--max-num-seqs=4", "--goodput", "ttft:1", "tpot:2"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"port": 9}, ["serve", "model", *COMMAND[4:], "--port", "9"]),
        ({"max_num_seqs": 8}, [*COMMAND[:4], *COMMAND[5:], "--max-num-seqs", "8"]),
        ({"goodput": ["e2el:3"]}, [*COMMAND[:5], "--goodput", "e2el:3"]),
        ({"ignore_eos": True}, [*COMMAND, "--ignore-eos"]),
        ({"ignore-eos": False}, [*COMMAND, "--no-ignore-eos"]),
        ({"a_b.c_d": True}, [*COMMAND, "--a-b.c_d=true"]),
        ({"extra": {"x": 1}, "_benchmark_name": "n"}, [*COMMAND, "--extra", '{"x": 1}']),
    ],
)
def test_options_replace_those_of_the_command(fields: dict[str, Any], words: list[str]) -> None:
    assert Parameters(fields=fields).apply(COMMAND) == words


def test_a_switch_replaces_its_opposite_and_no_other_word() -> None:
    switched = Parameters(fields={"eager": False}).apply(["serve", "--eager", "model"])
    assert switched == ["serve", "model", "--no-eager"]


def test_sets_are_a_list_or_have_names(tmp_path: Path) -> None:
    path = tmp_path / "sets.json"
    path.write_text('{"small": {"a": 1}, "large": {"a": 2}}')
    assert [one.name for one in read_parameters(str(path), "--x")] == ["small", "large"]
    assert [one.name for one in read_parameters('[{"a": 1, "b": 2}]', "--x")] == ["a=1-b=2"]
    assert read_parameters(None, "--x") == [Parameters()]


@pytest.mark.parametrize(
    "given", ["nowhere.json", "[", "[]", "[1]", '{"a": 1}', '[{"a":1}, {"a":1}]']
)
def test_other_json_is_refused_with_the_option(given: str) -> None:
    with pytest.raises(ConfigError, match="--x"):
        read_parameters(given, "--x")


def test_only_linked_combinations_are_used() -> None:
    servers = read_parameters(json.dumps([{"max_num_seqs": n} for n in (1, 2)]), "--s")
    loads = read_parameters(json.dumps([{"max-concurrency": n} for n in (2, 3)]), "--b")
    assert len(list(pairs(servers, loads, {}))) == 4
    found = list(pairs(servers, loads, read_links("max_num_seqs=max_concurrency")))
    assert found == [(servers[1], loads[0])]
    for links in ("other=max_concurrency", "max_num_seqs=rate"):
        with pytest.raises(ConfigError, match=f"--link-vars {links}: no combination") as raised:
            pairs(servers, loads, read_links(links))
        reason = "--serve-params have max_num_seqs, --bench-params have max-concurrency"
        assert str(raised.value).endswith(reason)
    with pytest.raises(ConfigError, match=r"--bench-params have no options$"):
        pairs(servers, [Parameters()], {"max_num_seqs": "max_concurrency"})
    with pytest.raises(ConfigError, match="--link-vars must be SERVER=BENCH"):
        read_links("a")
