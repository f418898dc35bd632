"""Measures the CPU time that an open live page costs the server, in turns with a closed one.

The page is open in Chromium. The engine has no model. Its steps wait for 5 ms, so that the CPU time
of a model does not hide the cost of the page. The engine is idle, or streams eight answers at a
time. CPU time is that of the server and of its engine's process. Chromium itself slows the machine
down, so the engine generates fewer tokens. The cost of the page is the difference from the CPU time
of the same number of tokens without the page. `--pictures` draws the pages of the documentation: of
an idle, a loaded and a starved engine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil
from recording import make_parser, make_table, record, summarize
from rich.console import Console
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.check.clients.environments import PROGRAMS, client_environment, node_with
from tests.check.parts import need
from tests.server_process import RunningServer, running_server

NUM_BLOCKS = "TOY_NUM_BLOCKS"  # as in tests/api/toy_process.py
SETTLE_SECONDS = 4.0
PICTURES = {
    "live-idle": ("idle", "256"),
    "live": ("loaded", "256"),
    "live-starved": ("loaded", "64"),
}
"""Names of the pictures: the load, and the KV blocks of the engine."""


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    parser.add_argument("--pictures", type=Path, help="draw pictures into this folder instead")
    args = parser.parse_args()
    if args.pictures is not None:
        draw(args.pictures)
        return
    uses: dict[tuple[str, int], list[Use]] = {}
    with serving("256") as server:
        for turn in tqdm(range(args.rounds), desc="rounds", disable=None):
            for load in ("idle", "loaded"):
                with loaded(server) if load == "loaded" else nullcontext():
                    for pages in (0, 1) if turn % 2 == 0 else (1, 0):
                        with opened(server) if pages else nullcontext():
                            time.sleep(SETTLE_SECONDS)
                            use = measure(server, args.seconds)
                        uses.setdefault((load, pages), []).append(use)
    table = make_table("% of a CPU", "no page", "one page", "the page")
    found = {}
    for load in ("idle", "loaded"):
        closed, opened_ = uses[load, 0], uses[load, 1]
        gained = [page_share(before, after) for before, after in zip(closed, opened_, strict=True)]
        found[load] = {
            "closed": summarize([one.share for one in closed]),
            "open": summarize([one.share for one in opened_]),
            "page": summarize(gained),
        }
        table.add_row(load, *(f"{one['median']:.2f}" for one in found[load].values()))
    Console().print(table)
    record(args, "live_page", {"percent_of_a_cpu": found})


def draw(folder: Path) -> None:
    """Draw the page of each state."""
    for name, (load, blocks) in PICTURES.items():
        with (
            serving(blocks) as server,
            loaded(server) if load == "loaded" else nullcontext(),
            opened(server, folder / f"{name}.png"),
        ):
            time.sleep(SETTLE_SECONDS)


@contextmanager
def serving(blocks: str) -> Iterator[RunningServer]:
    """A server whose engine computes nothing."""
    os.environ[NUM_BLOCKS] = blocks
    program = ("tests.api.toy_serve",)
    with (
        TemporaryDirectory() as folder,
        running_server(Path(folder), "--disable-log-stats", program=program) as server,
    ):
        yield server


@contextmanager
def loaded(server: RunningServer) -> Iterator[None]:
    """Eight streamed answers at a time."""
    words = [
        *("--base-url", server.url, "--num-prompts", "10000", "--max-concurrency", "8"),
        *("--input-len", "20", "--output-len", "100", "--ignore-eos", "--disable-tqdm"),
    ]
    command = (sys.executable, "-m", "tokenmill", "bench", "serve")
    client = subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL)
    try:
        while not server.load()["num_running"]:
            time.sleep(0.2)
        yield
    finally:
        client.terminate()
        client.wait(60)
        server.wait_until_empty()


@contextmanager
def opened(server: RunningServer, picture: Path | None = None) -> Iterator[None]:
    """The page is open in Chromium. `picture`: a file for a picture of it at the end."""
    folder = node_with("playwright-core@1")
    program = folder / "stay_live.mjs"
    program.write_text((PROGRAMS / program.name).read_text())
    words = [
        need("chromium", "chromium"),
        f"{server.url}/live",
        *([str(picture)] if picture else []),
    ]
    process = subprocess.Popen(
        [need("node", "nodejs"), program, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=client_environment(),
    )
    assert process.stdin is not None and process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError("the page did not open")
    try:
        yield
    finally:
        process.stdin.close()
        process.wait(60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A measurement of the server and its engine."""

    share: float
    """CPU time, in percent of one CPU."""
    tokens: float
    """Generated tokens per second."""


def page_share(closed: Use, opened: Use) -> float:
    """CPU time of the page, in percent of one CPU."""
    work = opened.tokens / closed.tokens if closed.tokens else 1.0
    return opened.share - closed.share * work


def measure(server: RunningServer, seconds: float) -> Use:
    """Measure the server and its engine for `seconds`."""
    own = psutil.Process(server.process.pid)
    processes = [own, *own.children(recursive=True)]

    def used() -> float:
        return sum(one.cpu_times().user + one.cpu_times().system for one in processes)

    tokens, before, began = num_generated(server), used(), time.monotonic()
    time.sleep(seconds)
    took, spent = time.monotonic() - began, used() - before
    return Use(share=100 * spent / took, tokens=(num_generated(server) - tokens) / took)


def num_generated(server: RunningServer) -> float:
    """The number of tokens that the engine has generated."""
    text = httpx.get(f"{server.url}/metrics").text
    [found] = re.findall(r"^\S*generation_tokens_total(?:{.*})? (\S+)$", text, re.MULTILINE)
    return float(found)


if __name__ == "__main__":
    main()
