"""Models, plugins and settings of tokenmill on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from ..backends.weights.default_model import find_default_model
from ..core.errors import TokenmillError
from ..core.host.listing import discover_plugins
from .finding import Finding, note, ok, problem

_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CXX",
    "HF_HUB_CACHE",
    "HF_HOME",
    "OMP_NUM_THREADS",
    "TOKENMILL_CPU_ISA",
    "XDG_CACHE_HOME",
)


def examine_default_model() -> Finding:
    """The model that `tokenmill serve` takes without a name."""
    try:
        return ok("default model", str(find_default_model()))
    except TokenmillError as error:
        return note(
            "default model",
            str(error),
            advice="`tokenmill model fetch` installs it; or name another model",
        )


def examine_plugins() -> Finding:
    """The plugins that are enabled, and those that cannot be loaded."""
    try:
        infos = discover_plugins()
    except TokenmillError as error:
        return problem(
            "plugins",
            str(error),
            cost="no server starts",
            advice="mend or remove the file or package that the message names",
        )
    broken = [one for one in infos if one.state == "failed"]
    if broken:
        named = (f"{one.name} ({one.distribution} {one.version}): {one.error}" for one in broken)
        return problem(
            "plugins",
            "; ".join(named),
            cost="no server starts",
            advice="upgrade or uninstall the package, or disable the plugin in plugins.toml",
        )
    others = [one.name for one in infos if one.distribution not in ("tokenmill", "-")]
    enabled = sum(one.state == "enabled" for one in infos)
    third = f"; third-party: {', '.join(others)}" if others else ""
    return ok("plugins", f"{enabled} enabled{third}")


def examine_settings() -> Finding:
    """The environment variables that change tokenmill without a flag."""
    given = [f"{name}={os.environ[name]}" for name in _VARIABLES if os.environ.get(name)]
    if Path("plugins.toml").exists():
        given.append("./plugins.toml")
    if not given:
        return ok("settings", "no environment variable and no ./plugins.toml changes the defaults")
    return note(
        "settings",
        ", ".join(given),
        cost="these apply to each start from here",
    )
