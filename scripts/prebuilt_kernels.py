"""A build hook for hatchling that adds the compiled CPU kernels to a wheel (see `make wheel`).

Such a wheel needs no compiler. The hook runs in an environment with tokenmill installed, without
build isolation. It does nothing unless TOKENMILL_PREBUILT is 1: other wheels fit every platform.
"""

from __future__ import annotations

import os
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PrebuiltKernels(BuildHookInterface[Any]):
    """Adds the libraries of all instruction sets and names the platform that they are for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get("TOKENMILL_PREBUILT") != "1" or version == "editable":
            return
        from tokenmill.backends.cpu.native.build import PREBUILT, build_all
        from tokenmill.core.interfaces import no_progress

        for name, path in build_all(no_progress).items():
            place = f"tokenmill/backends/cpu/{PREBUILT.name}/{name}"
            build_data["force_include"][str(path)] = place
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
