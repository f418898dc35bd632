"""Main memory: how much this process may use, and how fast it is reached."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import psutil

from ..backends.machine.memory import usable_memory
from .finding import Finding, note, ok, warning

_GIB = 1 << 30
_LITTLE = 1 * _GIB
"""The default model with a small KV cache needs 0.6 GiB."""
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def examine_memory() -> Finding:
    """Memory that is free for a model."""
    total, usable = psutil.virtual_memory().total, usable_memory()
    found = f"{usable / _GIB:.1f} of {total / _GIB:.1f} GiB are free for this process"
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        return warning(
            "memory",
            f"{found}; its address space is limited to {limit / _GIB:.1f} GiB (ulimit -v)",
            cost="torch alone reserves several GiB that it does not use",
            advice="remove the limit (ulimit -v unlimited), or limit a control group instead",
        )
    if usable < _LITTLE:
        return warning(
            "memory",
            found,
            cost="the default model needs 0.6 GiB, others need more",
            advice="free memory, raise the container's limit, or lower --kv-cache-memory",
        )
    return ok("memory", found)


def examine_huge_pages() -> Finding:
    """Whether weights and KV cache get pages of 2 MiB."""
    try:
        text = _HUGE_PAGES.read_text()
    except OSError:
        return note("huge pages", "this system does not offer them")
    chosen = re.search(r"\[(\w+)\]", text)
    if chosen is not None and chosen[1] == "never":
        return warning(
            "huge pages",
            "transparent huge pages are off",
            cost="address translation takes up to a sixth of a step",
            advice=f"as root: echo madvise > {_HUGE_PAGES}",
        )
    return ok("huge pages", f"transparent huge pages: {chosen[1] if chosen else text.strip()}")
