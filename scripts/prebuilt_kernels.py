"""Puts the compiled CPU kernels into a wheel (see `make wheel`), for machines without a compiler.

A hook of hatchling. It runs where tokenmill itself is installed, without build isolation, and does
nothing unless TOKENMILL_PREBUILT is 1: wheels are otherwise the same for every platform.
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
        from tokenmill.backends.cpu.build import PREBUILT, build_all

        for name, path in build_all(lambda stage, part: None).items():
            place = f"tokenmill/backends/cpu/{PREBUILT.name}/{name}"
            build_data["force_include"][str(path)] = place
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
