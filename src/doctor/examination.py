"""All checks of `tokenmill doctor`, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..core.errors import describe
from . import devices, files, memory, processor, software, tokenmill_itself
from .finding import Finding

Check = Callable[[], Finding]

CHECKS: tuple[Check, ...] = (
    software.examine_python,
    software.examine_packages,
    software.examine_extras,
    processor.examine_processor,
    processor.examine_compiler,
    processor.examine_threads,
    memory.examine_memory,
    memory.examine_huge_pages,
    devices.examine_torch,
    devices.examine_gpus,
    files.examine_cache,
    files.examine_temporary_files,
    files.examine_open_files,
    files.examine_port,
    tokenmill_itself.examine_default_model,
    tokenmill_itself.examine_plugins,
    tokenmill_itself.examine_settings,
)


def examine(checks: tuple[Check, ...] = CHECKS) -> Iterator[Finding]:
    """Look at one part after the other. A check that fails is a finding, too."""
    for check in checks:
        try:
            yield check()
        except Exception as error:  # an odd machine must not hide the other findings
            name = check.__name__.removeprefix("examine_").replace("_", " ")
            yield Finding(
                name=name,
                state="warning",
                found=f"it could not be examined: {describe(error)}",
                advice="please report this with the output of `tokenmill doctor --json`",
            )
