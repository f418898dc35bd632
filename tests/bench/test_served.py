"""A served command does not outlive the program that started it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

PROGRAM = """
import http.server, sys
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Healthy).serve_forever()
"""
STARTER = """
import os, socket, sys, time
from pathlib import Path
from tokenmill.bench.served import ServedCommand
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
command = [sys.executable, sys.argv[1], "--port", str(port)]
server = ServedCommand(command=command, environment=os.environ, timeout=60, log=Path(sys.argv[2]))
try:
    server.get_ready()
    print("ready", flush=True)
    time.sleep(600)
finally:
    server.stop()
"""


def test_sigterm_ends_the_server_too(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    starter = [sys.executable, "-c", STARTER, str(program), str(tmp_path / "log")]
    with subprocess.Popen(starter, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        [server] = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not server.is_running()
