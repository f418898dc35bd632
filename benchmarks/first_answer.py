"""Measures README's way to the first answer: minutes, bytes downloaded, and bytes on disk.

python benchmarks/first_answer.py --help

A clone of this checkout's last commit runs `make serve` as on a new machine: with an empty HOME and
empty caches, of pip, too. As soon as the server is ready, it gets README's question. Downloads pass
through a proxy that counts them; wheels that pip takes from a folder of this machine count with
their size. "stated" is what the installation said before it began.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from counting_proxy import counting_proxy
from recording import describe_machine, make_parser, record

ROOT = Path(__file__).parent.parent
QUESTION = {
    "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
    "temperature": 0.2,
}
INSTALLED = "bin/tokenmill serve"
"""What make prints when the installation has ended."""
STATED = re.compile(r"packages: ([\d,]+) MB to download, ([\d,]+) MB on disk")
LOCAL_WHEEL = re.compile(r"Processing (?:file://)?(/\S+\.whl)")
END_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstAnswer:
    """One measurement. Times are in seconds from the start of `make serve`."""

    installed: float
    ready: float
    answered: float
    bytes_from_network: int
    bytes_from_local_wheels: int
    bytes_of_clone: int
    bytes_in_venv: int
    bytes_in_caches: int
    """In HOME: pip's cache, and the compiled kernels."""
    stated_download_mb: int | None
    stated_disk_mb: int | None
    answer: str


def measure(folder: Path, limit: float) -> FirstAnswer:
    """Clone, install, serve and ask, all in `folder`. Exits if a step fails."""
    checkout, home = folder / "tokenmill", folder / "home"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, checkout], check=True)
    clone = disk_bytes(checkout)
    (folder / "tmp").mkdir()
    home.mkdir()
    with counting_proxy() as proxy:
        port = free_port()
        environment = new_environment(home, folder, proxy.url)
        begun = time.monotonic()
        with making(checkout, f"serve ARGS=--port={port}", environment) as output:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(f"{url}/ready", output, begun + limit)
            ready = time.monotonic() - begun
            answer = ask(f"{url}/v1/chat/completions")
            answered = time.monotonic() - begun
        num_bytes = proxy.num_bytes
    text = "".join(line for _, line in output.lines)
    stated = STATED.search(text)
    return FirstAnswer(
        installed=round(output.time_of(INSTALLED) - begun, 1),
        ready=round(ready, 1),
        answered=round(answered, 1),
        bytes_from_network=num_bytes,
        bytes_from_local_wheels=local_wheel_bytes(folder / "pip.log"),
        bytes_of_clone=clone,
        bytes_in_venv=disk_bytes(checkout / ".venv"),
        bytes_in_caches=disk_bytes(home),
        stated_download_mb=int(stated[1].replace(",", "")) if stated else None,
        stated_disk_mb=int(stated[2].replace(",", "")) if stated else None,
        answer=answer,
    )


class Output:
    """The lines that make prints, with their times. A thread reads and shows them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[tuple[float, str]] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line))
            sys.stdout.write(line)

    def end(self) -> None:
        """Stop make and its children, and read what they still say."""
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
        self._thread.join()

    def time_of(self, text: str) -> float:
        """When a line with this text was printed."""
        return next(at for at, line in self.lines if text in line)


@contextlib.contextmanager
def making(checkout: Path, target: str, environment: Mapping[str, str]) -> Iterator[Output]:
    """Run make until the end of the block."""
    process = subprocess.Popen(
        ["make", *target.split(" ", 1)],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    output = Output(process)
    try:
        yield output
    finally:
        output.end()


def new_environment(home: Path, folder: Path, proxy: str) -> dict[str, str]:
    """The variables of a new user. pip keeps its index and certificates."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    kept.pop("PIP_CACHE_DIR", None)
    folders = {"HOME": home, "TMPDIR": folder / "tmp", "PIP_LOG": folder / "pip.log"}
    return {
        **kept,
        **{name: str(path) for name, path in folders.items()},
        **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), proxy),
        "NO_PROXY": "127.0.0.1",
        "PATH": outer_path(),
        "LANG": "C.UTF-8",
    }


def outer_path() -> str:
    """PATH without the virtual environment that runs this program."""
    own = str(Path(sys.prefix) / "bin")
    return os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if p != own)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_until_ready(url: str, output: Output, end: float) -> None:
    """Poll the server. Exits if make ends before, or the time is over."""
    while time.monotonic() < end:
        if output.process.poll() is not None:
            sys.exit("make has ended: see its output above")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10):
            return
        time.sleep(0.1)
    sys.exit("the server was not ready in time")


def ask(url: str) -> str:
    """The answer to README's question."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(QUESTION).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        text: str = json.load(answer)["choices"][0]["message"]["content"]
        return text


def disk_bytes(folder: Path) -> int:
    """Bytes of all blocks that files and folders take."""
    paths = [folder, *folder.rglob("*")]
    return sum(path.lstat().st_blocks * 512 for path in paths)


def local_wheel_bytes(pip_log: Path) -> int:
    """The sizes of wheels that pip took from folders."""
    paths = set(LOCAL_WHEEL.findall(pip_log.read_text(encoding="utf-8", errors="replace")))
    return sum(os.path.getsize(path) for path in paths)


def table(found: FirstAnswer, machine: Mapping[str, object], load: tuple[float, float]) -> str:
    """The page with the results, as Markdown."""
    mb = 1e6
    downloaded = (found.bytes_from_network + found.bytes_from_local_wheels) / mb
    on_disk = (found.bytes_of_clone + found.bytes_in_venv + found.bytes_in_caches) / mb
    rows = {
        "first answer": f"{found.answered / 60:.1f} minutes",
        "of these, installation": f"{found.installed / 60:.1f} minutes",
        "of these, first start (kernels are compiled and tested)": (
            f"{found.ready - found.installed:.0f} s"
        ),
        "of these, the answer itself": f"{found.answered - found.ready:.1f} s",
        "downloaded": f"{downloaded:,.0f} MB (stated before: {found.stated_download_mb} MB)",
        "on disk": f"{on_disk:,.0f} MB",
        "of these, .venv": f"{found.bytes_in_venv / mb:,.0f} MB (stated before: "
        f"{found.stated_disk_mb} MB)",
        "of these, caches (pip's, kernels)": f"{found.bytes_in_caches / mb:,.0f} MB",
        "of these, the clone": f"{found.bytes_of_clone / mb:,.0f} MB",
    }
    lines = [f"| {name} | {value} |" for name, value in rows.items()]
    return "\n".join(
        [
            "# From a checkout to the first answer",
            "",
            "Written by `python benchmarks/first_answer.py`: README's two commands, with an empty "
            "HOME and empty caches.",
            f"Machine: {machine['processor']}, {machine['cores']} cores, {machine['system']}, "
            f"Python {machine['python']}. Load average before {load[0]:.1f}, after {load[1]:.1f}.",
            f"{found.bytes_from_local_wheels / mb:,.0f} MB of the downloads came from wheels on "
            "this machine, which takes no time of a network.",
            "",
            "| what | measured |",
            "|---|---|",
            *lines,
            "",
        ]
    )


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--limit", type=float, default=45.0, help="minutes until it gives up")
    parser.add_argument("--keep", action="store_true", help="keep the folder, and print its path")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="first-answer-"))
    try:
        found = measure(folder, 60 * args.limit)
    finally:
        if args.keep:
            print(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    load = before, os.getloadavg()[0]
    page = table(found, describe_machine(), load)
    print(page)
    record(args, "first_answer", {"load_average": load, "first_answer": asdict(found)})
    if args.json:
        args.json.with_suffix(".md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
