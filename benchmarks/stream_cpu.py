"""Measures who needs how much CPU time for a token of one stream through `tokenmill serve`.

Linux counts the time of each thread in nanoseconds (/proc/PID/task/TID/schedstat), so that the
figures mean something on a busy machine, too. The client does not count.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from recording import make_parser, record, summarize
from tqdm import tqdm

WHO = ("server", "engine's event loop", "engine's other threads")
Times = Counter[str]
"""Nanoseconds on a CPU, and times that a thread has slept, by name."""


@contextmanager
def serving(flags: list[str]) -> Iterator[tuple[int, str]]:
    """The process id and the URL of a server."""
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "tokenmill", "serve", "--port", "0", *flags]
        process = subprocess.Popen(command, stderr=log, stdout=log)
        try:
            yield process.pid, _url(process, Path(f"/proc/self/fd/{log.fileno()}"))
        finally:
            process.terminate()
            process.wait()


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    while not (found := re.search(r'"address": "(http:[^"]+)"', log.read_text())):
        if process.poll() is not None:
            raise RuntimeError(log.read_text())
        time.sleep(0.2)
    return found[1]


def times(server: int) -> Times:
    """What the threads of the server and of its engine have needed so far."""
    [engine] = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    found: Times = Counter()
    for pid in (server, int(engine)):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            is_main = thread.name == str(pid)
            who = WHO[0] if pid == server else WHO[1] if is_main else WHO[2]
            found[who] += int((thread / "schedstat").read_text().split()[0])
            status = (thread / "status").read_text()
            [sleeps] = re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.M)
            found[f"{who}: sleeps"] += int(sleeps)
    return found


def generate(url: str, num_tokens: int) -> None:
    body = {"prompt": [1, 2, 3], "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=None) as answer:
        assert answer.status_code == 200, answer.read()
        num_events = sum(line.startswith("data: ") for line in answer.iter_lines())
    assert num_events > 1


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--num-tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="flags of `tokenmill serve`")
    args = parser.parse_args()
    rounds: list[Times] = []
    with serving(args.flags) as (pid, url):
        generate(url, args.num_tokens)  # warms up
        for _ in tqdm(range(args.rounds), disable=None):
            before = times(pid)
            generate(url, args.num_tokens)
            rounds.append(times(pid) - before)
    found = {
        who: {
            "cpu_us_per_token": summarize([r[who] / args.num_tokens / 1e3 for r in rounds]),
            "sleeps_per_token": summarize([r[f"{who}: sleeps"] / args.num_tokens for r in rounds]),
        }
        for who in WHO
    }
    print(json.dumps(found, indent=2))
    record(args, "stream_cpu", found)


if __name__ == "__main__":
    main()
