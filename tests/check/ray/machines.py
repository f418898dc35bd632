"""Two machines with a Ray cluster, without any other network: two network namespaces and a cable.

`unshare ... python -m tests.check.ray.machines PROGRAM...` runs the program on the first machine.
The module is the first process of new namespaces, so the kernel ends all others with it.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

UNSHARE = (
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "--pid",
    "--fork",
    "--mount-proc",
    "--kill-child",
)
SESSIONS = Path("/tmp/ray")
HEAD, OTHER, PORT, CABLE = "10.77.0.1", "10.77.0.2", 6379, "veth0"
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=2"]
RAY += ["--disable-usage-stats", "--object-store-memory=80000000"]


def main(program: Sequence[str]) -> int:
    """Start the cluster, and run a program that uses it; returns its exit status."""
    other = subprocess.Popen(["unshare", "--net", "--mount", "sleep", "infinity"])
    on_other = ("nsenter", "--target", str(other.pid), "--net", "--mount")
    _lay_cable(other.pid, on_other)
    SESSIONS.mkdir(exist_ok=True)
    for place in ((), on_other):
        # Each machine has its own files of Ray, and no name server: it could not be reached, and
        # torch asks for the names of the ranks' addresses.
        subprocess.run([*place, "mount", "-t", "tmpfs", "ray", SESSIONS], check=True)
        subprocess.run([*place, "mount", "--bind", os.devnull, "/etc/resolv.conf"], check=True)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ |= {
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "tokenmill.ray_serve:middlewares",
        "RAY_worker_niceness": "0",  # with Ray's 15, a busy machine starts actors in minutes
    }
    for command in (
        [
            *RAY,
            "--head",
            "--dashboard-host=127.0.0.1",
            f"--port={PORT}",
            f"--node-ip-address={HEAD}",
        ],
        [*on_other, *RAY, f"--address={HEAD}:{PORT}", f"--node-ip-address={OTHER}"],
    ):
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    os.environ["RAY_ADDRESS"] = f"{HEAD}:{PORT}"
    process = subprocess.Popen(program)
    while True:  # also for the processes whose parents have ended
        pid, status = os.wait()
        if pid == process.pid:
            return os.waitstatus_to_exitcode(status)


def _lay_cable(other: int, on_other: Sequence[str]) -> None:
    while os.readlink(f"/proc/{other}/ns/net") == os.readlink("/proc/self/ns/net"):
        time.sleep(0.01)  # until it has left this machine's
    for command in (
        f"ip link add name {CABLE} type veth peer name veth1 netns {other}",
        f"ip address add {HEAD}/24 dev {CABLE}",
        f"ip link set {CABLE} up",
        "ip link set lo up",
        f"ip route add default via {OTHER}",  # so that Ray would choose HEAD for itself
    ):
        subprocess.run(command.split(), check=True)
    for command in (f"ip address add {OTHER}/24 dev veth1", "ip link set veth1 up"):
        subprocess.run([*on_other, *command.split()], check=True)
    subprocess.run([*on_other, "ip", "link", "set", "lo", "up"], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
