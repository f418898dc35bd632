"""tokenmill over HTTP, streamed: what the way through the server costs beside the offline API."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence

from http_load import Load, completion_body, run
from worker import measure, parse_args, say
from workloads import Request, uniform


def main() -> None:
    args = parse_args()
    dtype = "bfloat16" if args.precision == "bf16" else "auto"
    command = [sys.executable, "-m", "tokenmill", "serve", "--port", "0", "--model", args.model]
    command += ["--dtype", dtype, "--no-enable-prefix-caching", "--disable-log-stats"]
    command += ["--served-model-name", "model"]
    server = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        port = _port(server)
        loads: list[Load] = []

        def answer(requests: Sequence[Request]) -> None:
            bodies = [completion_body("model", r, stream=True) for r in requests]
            loads.append(run(port, "/v1/completions", bodies))

        answer(uniform(2, 32, 8, seed=1))  # warms up
        for name in args.workloads:
            loads.clear()
            say("begin", name)
            figures = measure(name, answer, args.output_len)
            client = sum(load.client_cpu_seconds for load in loads)
            share = client / sum(load.seconds for load in loads)
            say("end", name, **figures, client_cpu_share=share)
    finally:
        server.terminate()
        server.wait(60)


def _port(server: subprocess.Popen[str]) -> int:
    assert server.stdout is not None
    for line in server.stdout:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if found:
            return int(found[1])
    raise RuntimeError("the server did not start")


if __name__ == "__main__":
    main()
