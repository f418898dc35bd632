"""Folders and sockets that a start needs."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile

from ..backends.machine.compiling import BUILD_BYTES, BuildError, cache_folder
from .finding import Finding, note, ok, problem, warning

_PORT = 8000
_FEW_FILES = 1024


def examine_cache() -> Finding:
    """The folder for compiled kernels and quantized models."""
    try:
        folder = cache_folder()
    except BuildError as error:
        return warning(
            "cache",
            str(error),
            cost="kernels cannot be built",
            advice="set XDG_CACHE_HOME to a folder that this user can write",
        )
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free
    found = f"{folder} ({free / (1 << 30):.1f} GiB free)"
    if not os.access(place, os.W_OK | os.X_OK):
        trouble = f"{place} cannot be written"
    elif os.statvfs(place).f_flag & getattr(os, "ST_NOEXEC", 0):
        trouble = f"{place} is on a file system that runs no programs (noexec)"
    elif free < BUILD_BYTES:
        trouble = f"a build needs {BUILD_BYTES >> 20} MiB"
    else:
        return ok("cache", found)
    return warning(
        "cache",
        f"{found}; {trouble}",
        cost="kernels cannot be built or loaded; torch computes instead, several times slower",
        advice="set XDG_CACHE_HOME to another folder",
    )


def examine_open_files() -> Finding:
    """The number of connections that this process may hold."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _FEW_FILES:
        return warning(
            "open files",
            f"at most {hard} (ulimit -Hn)",
            cost="each client needs one; further clients wait",
            advice="raise the limit (systemd: LimitNOFILE=8192; docker: --ulimit nofile=8192)",
        )
    limit = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    return ok("open files", f"{soft} now; `serve` may raise it to {limit}")


def examine_port() -> Finding:
    """The default port of `tokenmill serve`."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", _PORT))
        except OSError as error:
            return note(
                "port",
                f"127.0.0.1:{_PORT} is not free: {error.strerror}",
                advice="serve with --port 9000, or end the other program "
                f"(ss -ltnp 'sport = :{_PORT}' names it)",
            )
    return ok("port", f"127.0.0.1:{_PORT} is free")


def examine_temporary_files() -> Finding:
    """The folder for the memory that processes share where the system has no unnamed files."""
    try:
        return ok("temporary files", tempfile.gettempdir())
    except FileNotFoundError as error:
        return problem(
            "temporary files",
            str(error),
            cost="engine processes cannot start",
            advice="set TMPDIR to a folder that this user can write",
        )
