"""Runs tokenmill over HTTP, streamed, to compare the server with the offline API."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from http_load import Load, completion_body, run, server
from worker import measure, parse_args, say
from workloads import Request, uniform


def main() -> None:
    args = parse_args()
    dtype = "bfloat16" if args.precision == "bf16" else "auto"
    command = [sys.executable, "-m", "tokenmill", "serve", "--model", args.model, "--dtype", dtype]
    command += ["--no-enable-prefix-caching", "--disable-log-stats"]
    command += ["--served-model-name", "model"]
    with server(command) as port:
        loads: list[Load] = []

        def answer(requests: Sequence[Request]) -> None:
            bodies = [completion_body("model", request) for request in requests]
            loads.append(run(port, "/v1/completions", requests, bodies))

        answer(uniform(2, 32, 8, seed=1))  # warms up
        for name in args.workloads:
            loads.clear()
            say("begin", name)
            figures = measure(name, answer, args.output_len)
            client = sum(load.client_cpu_seconds for load in loads)
            share = client / sum(load.seconds for load in loads)
            say("end", name, **figures, client_cpu_share=share)


if __name__ == "__main__":
    main()
