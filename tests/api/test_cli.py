"""The command line without a model: help, mistakes, plugins."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .forked_commands import run_forked

HERE = str(Path(__file__).parent)
"""A directory without a model."""


def tokenmill(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "tokenmill", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def check_one_line(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    """A user's mistake: an exit status, a line that says what it was, no traceback. In a server's
    JSON lines it is the last one."""
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    *events, last = done.stderr.splitlines()
    if last.startswith("{"):
        assert all(json.loads(event)["event"] != "failed" for event in events)
        line = json.loads(last)["reason"]
        assert json.loads(last)["event"] == "failed"
    else:
        (line,) = [found for found in done.stderr.splitlines() if found.startswith("error: ")]
    for word in words:
        assert word in line


def test_help_answers_at_once_without_torch_or_a_web_framework() -> None:
    code = (
        "import sys; from tokenmill.api.cli import make_parser; make_parser().format_help();"
        "print(sorted({'torch', 'starlette', 'uvicorn', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_a_flag_that_is_not_known_gets_a_near_one() -> None:
    check_one_line(run_forked("serve", "--max-modl-len", "3"), 2, "Did you mean '--max-model-len'?")
    done = run_forked("serve", "--max-model-len", "abc")
    check_one_line(done, 2, "'abc' is not a number")
    assert "Did you mean" not in done.stderr


def test_a_flag_of_another_command_is_told_to_be_one() -> None:
    done = run_forked("serve", "--workload", "x")
    check_one_line(done, 2, "unrecognized arguments: --workload", "`tokenmill simulate compare`")
    assert "Did you mean" not in done.stderr and "tokenmill serve --help" in done.stderr
    done = run_forked("generate", "x", "--data-parallel-size=2")
    check_one_line(done, 2, "--data-parallel-size=2. It is a flag of `tokenmill serve`.")


@pytest.mark.parametrize("command", [["generate", "hi"], ["chat", "-q", "hi"]], ids=lambda c: c[0])
def test_a_sampling_flag_out_of_range_is_told_before_anything_is_loaded(command: list[str]) -> None:
    done = run_forked(*command, "--max-tokens", "-5")
    check_one_line(done, 1, "max_tokens", "-5")
    assert "loading" not in done.stderr


def test_input_that_is_not_utf_8_is_refused_with_the_byte() -> None:
    command = [sys.executable, "-m", "tokenmill.api.cli", "generate", "-"]
    done = subprocess.run(command, input=b"caf\xe9", capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"error: standard input is not UTF-8: ")
    assert b"at byte 3" in done.stderr and b"Traceback" not in done.stderr


def test_help_of_serve_names_vllm_s_flags_and_their_defaults() -> None:
    text = " ".join(run_forked("serve", "--help-all").stdout.split())
    for flag in ("--dtype", "--max-num-seqs", "--block-size", "--num-gpu-blocks-override",
                 "--api-key", "--served-model-name", "--gpu-memory-utilization",
                 "--max-num-batched-tokens", "--kv-cache-memory", "--scheduler",
                 "--preemption-mode", "--metrics-prefix", "--disable-log-stats"):  # fmt: skip
        assert flag in text
    assert "(default: 256)" in text and "(default: 127.0.0.1)" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--max-num-seq", "4"], ["--max-num-seq", "--max-num-seqs"]),
        (["serve", "--port", "99999"], ["99999"]),
        (["serve", "--host", ""], ["--host", "is empty", "0.0.0.0"]),
        (["serve", "--max-num-seqs", "many"], ["many"]),
        (["serve", "--kv-cache-memory", "1e999G"], ["1e999G"]),
        (["generate"], ["PROMPT"]),
        (["why"], ["either the ID"]),
        (["why", "a", "--key", "b"], ["either the ID"]),
        (["why", "a", "--slowest", "3"], ["either the ID"]),
        (["sreve"], ["sreve"]),
    ],
    ids=" ".join,
)
def test_a_wrong_flag_is_one_line_and_status_2(arguments: list[str], words: list[str]) -> None:
    check_one_line(run_forked(*arguments), 2, *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--block-size", "7"], ["--block-size", "7"]),
        (["serve", "--dtype", "flaot32"], ["flaot32", "float32"]),
        (["serve", "--api-key", ""], ["key"]),
        (["serve", "--port", "0", "--scheduler", "chunkd"], ["chunkd", "chunked"]),
        (["serve", "--port", "0", "/no/such/model"], ["no model at /no/such/model"]),
        (["serve", "--port", "0", __file__], ["test_cli.py", "not a model in a known format"]),
        (["serve", "--port", "0", HERE], [f"no model in {HERE}", "no config.json and no .gguf"]),
        (["model", "inspect", HERE], [f"no model in {HERE}", "no config.json and no .gguf"]),
        (["serve", "--router", "session"], ["--router session", "add --data-parallel-size"]),
        (["serve", "-tp", "0"], ["--tensor-parallel-size", "0"]),
        (["serve", "-pp", "0"], ["--pipeline-parallel-size", "0"]),
        (["generate", "hi", "--model", __file__], ["test_cli.py"]),
        (["plugins", "list", "--plugins-file", "/no/such/plugins.toml"], ["plugins.toml"]),
        (["serve", "--host", "no.such.host.invalid"], ["no.such.host.invalid"]),
        (["chat", "-q", "hi", "--url", "http://127.0.0.1:9/v1"], ["127.0.0.1:9"]),
        (["chat", "-q", "hi", "--url", "ftp:x"], ["ftp:x"]),
        (["chat", "-q", "hi", "--url", "localhost:x/v1"], ["localhost:x"]),
        (["serve", "--served-model-name", "a", "/no/such/model"], ["--served-model-name", "MODEL"]),
        (["serve", "--served-model-name", "a", "b.gguf"], ["--served-model-name", "'b.gguf'"]),
        (
            ["serve", "/no/such/model", "--port", "0", "--served-model-name", "a", "b"],
            ["/no/such/model"],
        ),
        (
            ["serve", "--served-model-name", "a", "b", "--port", "0", "--scheduler", "chunkd"],
            ["chunked"],
        ),
        (["plugins", "show", "chunkd"], ["chunkd", "chunked"]),
    ],
    ids=" ".join,
)
def test_what_cannot_work_is_one_line_and_status_1(arguments: list[str], words: list[str]) -> None:
    check_one_line(run_forked(*arguments), 1, *words)


def test_a_taken_port_is_told_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run_forked("serve", "--port", port)
    check_one_line(done, 1, port, "--port")
    assert "loading" not in done.stderr


def test_a_removed_folder_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    program = "import os, sys; from tokenmill.api import cli; os.rmdir(os.getcwd()); "
    done = subprocess.run(
        [sys.executable, "-c", f"{program} sys.exit(cli.main(['serve']))"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    check_one_line(done, 1, "folder was removed")


def test_a_limit_of_the_size_of_files_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.api.toy_serve"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    check_one_line(done, 1, "ulimit -f")


def test_plugins_are_listed_one_per_row_where_nobody_sees_it_on_a_terminal() -> None:
    rows = run_forked("plugins", "list", "--verbose").stdout.splitlines()
    assert rows[0].split()[:2] == ["PLUGIN", "STATE"]
    (row,) = [row for row in rows if row.startswith("fcfs ")]
    assert "enabled" in row and "scheduling_policy:fcfs*" in row
    assert row.split()[-2] == "tokenmill"
    assert [row for row in rows if row != row.rstrip()] == []
    listed = json.loads(run_forked("plugins", "list", "--json").stdout)
    assert {row.split()[0] for row in rows[1:]} == {plugin["name"] for plugin in listed}


def test_a_plugin_is_described() -> None:
    text = run_forked("plugins", "show", "chunked").stdout
    assert "scheduler chunked" in text and "contract: stable" in text
    found = json.loads(run_forked("plugins", "show", "chunked", "--json").stdout)
    assert found["info"]["name"] == "chunked"
    assert found["providers"][0]["kind"] == "scheduler"
    assert found["providers"][0]["tier"] == "stable"


def test_plugins_show_says_what_an_attention_backend_lacks_on_this_machine() -> None:
    text = run_forked("plugins", "show", "flash-attn").stdout
    assert "on this machine:" in text and "FlashAttention 2: " in text
    assert "contract: provisional" in text


@pytest.mark.parametrize(
    ("name", "plugin"), [("torch", "torch-attention"), ("mp", "executors")], ids=["name", "alias"]
)
def test_plugins_show_finds_a_plugin_by_what_it_offers(name: str, plugin: str) -> None:
    assert run_forked("plugins", "show", name).stdout.startswith(f"{plugin} ")


def test_the_default_model_s_path_is_printed_alone() -> None:
    done = tokenmill("model", "path")
    assert done.returncode == 0
    assert Path(done.stdout.strip()).is_file()


def test_a_reader_that_stops_is_no_error() -> None:
    command = f"{sys.executable} -m tokenmill plugins list --json | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout == "[" and "Traceback" not in done.stderr


def test_help_for_a_reader_that_has_stopped_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tokenmill", "serve", "--help-all"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.stderr == ""


def test_commands_run_without_standard_streams(tmp_path: Path) -> None:
    code = (
        "import os, sys; from tokenmill.api.cli import main; main(['version'])\n"
        "null = os.stat(os.devnull).st_rdev\n"
        "found = [os.fstat(number).st_rdev == null for number in range(3)]\n"
        f"open({str(tmp_path / 'found')!r}, 'w').write(f'{{found}} {{sys.stderr.isatty()}}')"
    )
    subprocess.run(["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code], check=True)
    assert (tmp_path / "found").read_text() == "[True, True, True] False"


def test_text_that_the_terminal_s_encoding_lacks_is_escaped() -> None:
    code = "from tokenmill.api import cli; cli.__version__ = '1…'; cli.main(['version'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("tokenmill 1\\u2026\n", "")


def test_text_in_an_argument_is_utf_8_in_every_locale() -> None:
    code = "import sys; from tokenmill.api.commands.flags.text import utf8_text as text"
    code += "; print(ascii(text(sys.argv[1])))"
    ascii_only = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for environment in (ascii_only, dict(os.environ)):
        command: list[str | bytes] = [sys.executable, "-c", code, "caf\xe9 \U0001f600".encode()]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.stdout == "'caf\\xe9 \\U0001f600'\n", done.stderr
    command = [sys.executable, "-m", "tokenmill.api.cli", "chat", "-q", b"caf\xe9"]
    done = subprocess.run(command, env=ascii_only, capture_output=True, text=True)
    check_one_line(done, 1, "not UTF-8", "caf")


def test_version_is_a_command_too() -> None:
    assert tokenmill("version").stdout == tokenmill("--version").stdout


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("serve", "--max-body-bytes", "-5"), "-5"),
        (("serve", "--shutdown-timeout", "nan"), "nan"),
        (("serve", "--sse-keep-alive-interval", "-1"), "-1"),
        (("plugins", "list", "--jsn"), "--json"),
    ],
)
def test_a_value_or_flag_that_cannot_be_is_wrong_usage(
    arguments: tuple[str, ...], word: str
) -> None:
    check_one_line(run_forked(*arguments), 2, word)


def test_two_models_are_one_too_many() -> None:
    check_one_line(run_forked("serve", "/a", "--model", "/b"), 1, "/a", "/b")


@pytest.mark.parametrize("module", ["msgspec", "tokenmill.api.cli", "tokenmill.api.server"])
def test_ctrl_c_ends_quietly_while_python_imports(module: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.write(2, b'interrupted')\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
    )
    places = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = tokenmill("serve", "--port", "0", env={**os.environ, "PYTHONPATH": places})
    assert (done.returncode, done.stderr) == (130, "interrupted")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "tokenmill", "version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert found.returncode == 1
    assert found.stderr == "error: the output cannot be written: No space left on device\n"
