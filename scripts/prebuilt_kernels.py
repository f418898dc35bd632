"""A build hook for hatchling that adds the compiled CPU kernels to a wheel (see `make wheel`).

Such a wheel needs no compiler. The hook runs in an environment with tokenmill installed, without
build isolation. TOKENMILL_PREBUILT chooses the kernels: 1 those of this machine's architecture, and
aarch64 or x86_64 those of another one, by its cross compiler. Without it, the wheel has none and
fits every platform.
"""

from __future__ import annotations

import os
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PrebuiltKernels(BuildHookInterface[Any]):
    """Adds the libraries of all instruction sets and names the platform that they are for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        machine = os.environ.get("TOKENMILL_PREBUILT")
        if not machine or version == "editable":
            return
        from tokenmill.backends.cpu.native.build import PREBUILT, build_all
        from tokenmill.core.interfaces import no_progress

        built = build_all(no_progress) if machine == "1" else _build_for(machine)
        for name, path in built.items():
            place = f"tokenmill/backends/cpu/{PREBUILT.name}/{name}"
            build_data["force_include"][str(path)] = place
        build_data["pure_python"] = False
        platform = sysconfig.get_platform() if machine == "1" else f"linux-{machine}"
        build_data["tag"] = f"py3-none-{platform.replace('-', '_').replace('.', '_')}"


def _build_for(machine: str) -> dict[str, Path]:
    """Everything that a wheel for another architecture contains, by file name."""
    from tokenmill.backends.cpu.native.build import Toolchain, compile_product, products
    from tokenmill.core.interfaces import no_progress

    toolchain = Toolchain(compiler=f"{machine}-linux-gnu-g++", machine=machine)
    folder = Path(tempfile.mkdtemp())  # hatchling reads it after this hook
    return {
        product.name: compile_product(product, toolchain, folder, "", no_progress)
        for product in products(machine)
    }
