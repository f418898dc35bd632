"""Sweeps over a server that answers at once, and over starts: programs of a few lines."""

from __future__ import annotations

import csv
import json
import os
import socket
import sys
from pathlib import Path

import pytest

from tokenmill.bench.served import ServedCommand
from tokenmill.bench.sweeping.parameters import Parameters
from tokenmill.bench.sweeping.served_runs import ServedRuns
from tokenmill.bench.sweeping.starts import Starts
from tokenmill.bench.sweeping.sweep import Sweep
from tokenmill.core.errors import ConfigError, TokenmillError

SERVER = """
import http.server, os, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        known = self.headers["Authorization"] == f"Bearer {os.environ['KEY']}"
        self.send_response(int(sys.argv[sys.argv.index("--reset") + 1]) if known else 401)
        self.end_headers()

    def log_message(self, *words):
        pass

with open(sys.argv[1], "a") as log:
    print(*sys.argv[4:], file=log)
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
CLIENT = """
import json, os, pathlib, sys
of = lambda name: sys.argv[sys.argv.index(name) + 1]
if "--fail" in sys.argv and of("--fail") == "1":
    print(*range(100), sep="\\n")
    sys.exit("planted")
if "--fail" in sys.argv and of("--fail") == "2":
    sys.exit(3)
print("measured")
path = pathlib.Path(of("--result-dir")) / of("--result-filename")
found = {"request_throughput": 5.0, "words": sys.argv[1:3], "key": os.environ["KEY"]}
path.write_text(json.dumps(found))
"""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def make_sweep(
    folder: Path, *, reset: int = 200, admin_key: str = "sk", **options: object
) -> Sweep:
    for name, text in (("server", SERVER), ("client", CLIENT)):
        (folder / f"{name}.py").write_text(text)
    port = str(free_port())
    started = str(folder / "started.txt")
    serve = [sys.executable, str(folder / "server.py"), started, "--port", port]
    serve += ["--reset", str(reset)]
    bench = [sys.executable, str(folder / "client.py")]
    method = ServedRuns(
        serve=serve,
        bench=bench,
        log=folder / "out/server.log",
        environment={**os.environ, "KEY": "sk"},
        admin_key=admin_key,
    )
    return Sweep(folder=folder / "out", method=method, **options)  # type: ignore[arg-type]


def starts(folder: Path) -> int:
    return len((folder / "started.txt").read_text().splitlines())


def sets(name: str, *values: object) -> list[Parameters]:
    return [Parameters(fields={name: value}) for value in values]


def test_each_server_starts_once_and_every_run_has_its_options(tmp_path: Path) -> None:
    servers, loads = sets("seqs", 1, 2), sets("rate", 3, 4)
    sweep = make_sweep(tmp_path, servers=servers, loads=loads, num_runs=2, num_warmups=1)
    assert sweep.run(lambda line: None) == 0
    assert starts(tmp_path) == 2
    rows = list(csv.DictReader((tmp_path / "out/summary.csv").read_text().splitlines()))
    found = [(row["seqs"], row["rate"], row["run_number"]) for row in rows]
    assert {row["key"] for row in rows} == {"sk"}, "the client has the server's environment"
    assert found == [(s, r, n) for s in "12" for r in "34" for n in "01"]
    folder = tmp_path / "out/SERVE--seqs=2-BENCH--rate=3"
    assert [one["rate"] for one in json.loads((folder / "summary.json").read_text())] == [3, 3]
    assert json.loads((folder / "warmup.json").read_text())["run_number"] == -1


def test_a_server_that_keeps_its_cache_starts_again_for_each_run(tmp_path: Path) -> None:
    make_sweep(tmp_path, reset=404, num_runs=2).run(lambda line: None)
    assert starts(tmp_path) == 2


def test_the_admin_key_of_the_command_goes_first(tmp_path: Path) -> None:
    servers = sets("admin_key", "sk", "another")
    make_sweep(tmp_path, servers=servers, num_runs=2, admin_key="no").run(lambda line: None)
    assert starts(tmp_path) == 3, "once with the right key, for each run with a wrong one"


def test_a_sweep_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    loads = sets("fail", 0, 1)
    sweep = make_sweep(tmp_path, loads=loads, num_runs=1)
    with pytest.raises(TokenmillError, match="failed with status 1"):
        sweep.run(lambda line: None)
    lines: list[str] = []
    again = make_sweep(tmp_path, loads=loads, num_runs=1, continues=True)
    assert again.run(lines.append) == 1
    assert lines[0].endswith("run=0.json: found")
    failure = json.loads((tmp_path / "out/BENCH--fail=1/run=0.failure.json").read_text())
    assert failure["bench_overrides"] == {"fail": 1}
    assert (tmp_path / "out/BENCH--fail=0/summary.json").exists()
    assert not (tmp_path / "out/BENCH--fail=1/summary.json").exists()


def test_the_output_of_a_failed_command_is_kept_and_its_end_is_shown(tmp_path: Path) -> None:
    lines: list[str] = []
    loads = sets("fail", 0, 1, 2)
    sweep = make_sweep(tmp_path, loads=loads, num_runs=1, continues=True)
    assert sweep.run(lines.append) == 2
    [log] = (tmp_path / "out").glob("*/*.log")
    assert log == tmp_path / "out/BENCH--fail=1/run=0.log"
    assert log.read_text() == "".join(f"{number}\n" for number in range(100)) + "planted\n"
    shown = next(line for line in lines if "status 1" in line)
    head, *end = shown.splitlines()
    assert str(log) in head
    assert end == [*(f"  {number}" for number in range(91, 100)), "  planted"]
    assert lines[-1].endswith("failed with status 3, without any output")
    failure = json.loads(log.with_name("run=0.failure.json").read_text())
    assert "planted" in failure["error"]


def test_a_server_that_is_there_already_is_not_measured(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, num_runs=1)
    [command, _] = sweep.method.commands(next(sweep.plan()))
    first = ServedCommand(command=command, environment=os.environ, timeout=60, log=None)
    first.get_ready()
    try:
        with pytest.raises(ConfigError, match="another server listens on"):
            sweep.run(lambda line: None)
    finally:
        first.stop()


def test_a_server_that_ends_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    serve = [sys.executable, "-c", "1/0", "--port", str(free_port())]
    method = ServedRuns(serve=serve, bench=["true"], log=log, environment=os.environ)
    with pytest.raises(TokenmillError, match=r"ended with status 1: see .*server\.log"):
        Sweep(folder=tmp_path / "out", method=method, num_runs=1).run(lambda line: None)
    assert "ZeroDivisionError" in log.read_text()


def test_starts_are_measured_with_each_set_of_options(tmp_path: Path) -> None:
    program = tmp_path / "startup.py"
    program.write_text(
        "import json, pathlib, sys\n"
        "pathlib.Path(sys.argv[-1]).write_text(json.dumps({'words': sys.argv[1:-1]}))\n"
    )
    method = Starts(startup=[sys.executable, str(program), "--output-json", "else"])
    servers, loads = sets("dtype", "a", "b"), sets("num_iters_cold", 1)
    sweep = Sweep(folder=tmp_path / "out", method=method, servers=servers, loads=loads, num_runs=2)
    assert sweep.run(lambda line: None) == 0
    rows = json.loads(
        (tmp_path / "out/SERVE--dtype=b-STARTUP--num_iters_cold=1/summary.json").read_text()
    )
    words = ["--dtype", "b", "--num-iters-cold", "1", "--output-json"]
    expected = {"words": words, "dtype": "b", "num_iters_cold": 1}
    assert rows == [{**expected, "run_number": number} for number in (0, 1)]
