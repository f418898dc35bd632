"""Builds the native CPU kernels that the tests load: `python -m tests.build_kernels`.

`make test` runs it beside lint, so that no test waits for a compiler. Without it, the first test
that needs a library builds it. Only sets that this CPU runs: `make check` emulates the others.
"""

from __future__ import annotations

from tokenmill.backends.cpu.native.build import build_library, build_self_test
from tokenmill.backends.cpu.native.instruction_sets import supported_sets
from tokenmill.backends.machine.compiling import BuildError
from tokenmill.core.interfaces import no_progress


def build_kernels() -> None:
    """Build what is not in the user's cache; each file is built with all CPUs."""
    build_self_test(no_progress)
    for instruction_set in supported_sets():
        build_library(instruction_set, no_progress)


if __name__ == "__main__":
    try:
        build_kernels()
    except BuildError as error:
        print(f"tests of native kernels are skipped or fail: {error}")
