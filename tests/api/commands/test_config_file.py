"""`--config FILE`: a file gives what flags give, flags win, and mistakes are refused by key."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

from tokenmill.api.cli import main, make_parser
from tokenmill.api.commands.flags.keys import api_keys, warn_of_visible_keys
from tokenmill.core.log import event_fields

YAML = """\
# vLLM's keys, with - or _
model: ORG/NAME
port: 8001
max_model_len: 8k
gpu-memory-utilization: 0.5
revision: 0123
served-model-name: [mine, other]
api-key:
  - secret
enable-prefix-caching: off
no-engine-process: true
strict-fields: yes
cudagraph-capture-sizes: [1, 2]
speculative-config:
  method: ngram
  num_speculative_tokens: 3
"""
TOML = """\
model = "ORG/NAME"
port = 8001
max_model_len = "8k"
gpu-memory-utilization = 0.5
revision = "0123"
served-model-name = ["mine", "other"]
api-key = "secret"
enable-prefix-caching = false
no-engine-process = true
strict-fields = true
cudagraph-capture-sizes = [1, 2]
[speculative-config]
method = "ngram"
num_speculative_tokens = 3
"""
AS_FLAGS = shlex.split(
    "serve --model ORG/NAME --port 8001 --max-model-len 8k --gpu-memory-utilization 0.5 "
    "--revision 0123 --served-model-name mine other --api-key secret --no-enable-prefix-caching "
    "--no-engine-process --strict-fields --cudagraph-capture-sizes 1 2 --speculative-config "
    """'{"method": "ngram", "num_speculative_tokens": 3}'"""
)


def parse(*words: object) -> argparse.Namespace:
    return make_parser().parse_args(list(map(str, words)))


def written(folder: Path, text: str, name: str = "serve.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.toml", TOML)])
def test_a_file_gives_what_its_flags_give(tmp_path: Path, name: str, text: str) -> None:
    found = vars(parse("serve", "--config", written(tmp_path, text, name)))
    flags = vars(parse(*AS_FLAGS))
    assert len(found["config_keys"]) == 12
    assert found == flags | {"config": found["config"], "config_keys": found["config_keys"]}


def test_a_flag_replaces_what_the_file_has(tmp_path: Path) -> None:
    file = written(tmp_path, YAML)
    args = parse("serve", "MINE", "--api-key", "new", f"--config={file}", "--max-model-len", "auto",
                 "--served-model-name", "x", "--engine-process", "--port", "1")  # fmt: skip
    assert (args.model_argument, args.model, args.api_key) == ("MINE", None, ["new"])
    assert (args.max_model_len, args.port, args.served_model_name) == (None, 1, ["x"])
    assert args.engine_process and args.revision == "0123"
    assert "api_key" not in args.config_keys and "revision" in args.config_keys


def test_generate_and_inspect_take_a_file_with_their_own_flags(tmp_path: Path) -> None:
    file = written(tmp_path, "model: ORG/NAME\ntemperature: 0\nstop: [a, b]\n")
    args = parse("generate", "Once", "--config", file)
    assert (args.model, args.sampling_temperature, args.stop) == ("ORG/NAME", 0.0, ["a", "b"])
    assert parse("model", "inspect", "--config", written(tmp_path, "dtype: float32")).dtype
    assert parse("serve", "--config", written(tmp_path, "")).model is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-model-length: 3", "unknown key 'max-model-length'. Did you mean 'max-model-len'?"),
        ("task: embed", "unknown key 'task': one server answers"),
        ("config: other.yaml", "unknown key 'config'"),
        ("port: 99999", "'port' in "),
        ("port: 99999", "is not a port: give 0 to 65535"),
        ("port: [1, 2]", "it takes one value, not a list"),
        ("dtype: {a: 1}", "it takes one value, not a mapping"),
        ("log-level: trace", "must be one of debug, info"),
        ("swap-space: x", "it must be a number, got 'x'"),
        ("strict-fields: 3", "it is a switch, true or false, got '3'"),
        ("api-key:", "'api-key' has no value"),
        ("port: 1\nport: 2", "line 2: 'port' is given twice"),
        ("speculative-config: {model: a, model: b}", "'model' is given twice"),
        ("max-model-len: 1\nmax_model_len: 2", "'max_model_len' twice"),
        ("port: !ENV PORT", "has the tag !ENV"),
        ("speculative-config: !!python/object/apply:os.getcwd []", "it takes one value"),
        ("speculative-config: {a: !!python/object/apply:os.getcwd []}", "line 1: could not det"),
        ("speculative-config: {a: 2020-01-01}", "a value must be a text, a number, true or false"),
        ("- port", "it must be a mapping"),
        ("port: [1", "line 1: "),
        ("a: &a [*a]", "'a' is a list, which may hold only texts"),
        ("a: " + "[" * 1200, "nested too deeply"),
    ],
)
def test_a_mistake_is_refused_with_file_and_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(SystemExit) as ended:
        parse("serve", "--config", file)
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert printed.startswith("error: ") and said in printed and str(file) in printed
    assert printed.endswith("See `tokenmill serve --help`.\n")


def test_a_file_that_cannot_be_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"model: \xe4")
    for name, said in (
        ("no.yaml", "No such file"), ("a.ini", "neither .yaml nor .toml"), ("latin.yaml", "UTF-8")
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            parse("serve", "--config", tmp_path / name)
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("mode", "count"), [(0o600, 0), (0o644, 1)])
def test_a_key_in_a_file_that_others_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, count: int
) -> None:
    file = written(tmp_path, "api-key: sk-secret")
    file.chmod(mode)
    args = parse("serve", "--config", file)
    assert api_keys(args) == ("sk-secret",)
    warn_of_visible_keys(args)
    warnings = [str(event_fields(record)) for record in caplog.records]
    assert len(warnings) == count
    assert all(f"chmod 600 {file}" in text and "sk-secret" not in text for text in warnings)


@pytest.mark.parametrize(
    ("words", "model", "prompt"),
    [
        (["Once upon"], None, "Once upon"),
        (["ORG/NAME", "Once upon"], "ORG/NAME", "Once upon"),
        (["ORG/NAME", "--max-tokens", "3", "Once upon"], "ORG/NAME", "Once upon"),
        (["--max-tokens", "3", "ORG/NAME", "-"], "ORG/NAME", "-"),
    ],
)
def test_generate_takes_a_model_before_the_prompt(
    words: list[str], model: str | None, prompt: str
) -> None:
    args = parse("generate", *words)
    assert (args.model_argument, args.prompt) == (model, prompt)


def test_generate_says_where_the_prompt_belongs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, "{}", "config.json")
    for words in ([str(tmp_path)], ["Once upon a time", str(tmp_path)]):
        assert main(["generate", *words]) == 1
        assert "write MODEL first, then the prompt" in capsys.readouterr().err
