"""The suite for a plugin's package: entry point, hook API, options, cost of the import."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from ...core.contract.events import Stopping
from ...core.contract.registry import Registry
from ...core.host.discovery import InstalledPlugin, check_api, import_plugin
from ...core.host.hook_checks import new_manager, register_checked
from ...core.kinds import KINDS
from .fresh_import import FreshImport, import_afresh
from .hosting import load_host
from .installed import LoadedPlugin, find_plugin
from .reporting import Report, report_finding, report_time
from .suites import suite

MOST_SECONDS = 0.05
"""Maximum processor time that importing a plugin may add to the start of every command."""
_HEAVY = ("torch", "transformers", "tensorflow", "jax")


def check_the_entry_point_loads(plugin_name: str) -> None:
    """The entry point can be imported, and no other distribution uses its name."""
    plugin = find_plugin(plugin_name)
    assert not plugin.rivals, f"{plugin.source} and {plugin.rivals[0]} have the same name"
    plugin.entry_point.load()


def check_it_says_which_hook_api_it_supports(plugin_name: str) -> None:
    """The plugin declares TOKENMILL_API, and the range includes the engine's number."""
    plugin = _importable(plugin_name)
    module = sys.modules.get(plugin.entry_point.module)
    check_api(plugin.entry_point.load(), plugin.source, module=module)


def check_its_hooks_are_known(plugin_name: str) -> None:
    """Every function that is marked as a hook has the name and arguments of a hook."""
    _check_hooks(_importable(plugin_name))


def check_it_registers(plugin_name: str, report: Report) -> None:
    """The hook `register` registers only providers that the registry accepts."""
    for provider in _register(_importable(plugin_name)).providers():
        if KINDS[provider.kind].tier == "provisional":
            what = f"{provider.kind} {provider.name!r}"
            report_finding(
                report,
                f"{what}: its contract is provisional, and may change in any minor version",
            )


def check_its_options_are_documented(plugin_name: str) -> None:
    """Every option has a help text: `tokenmill plugins show` prints it."""
    plugin = _importable(plugin_name)
    _skip_if_broken(_register, plugin)
    registry = _register(plugin)
    for provider in registry.providers():
        for option in provider.describe().options:
            assert option.help, (
                f'{provider} {option.name}: field(..., metadata={{"help": ...}}) is missing'
            )


def check_all_of_it_can_be_built(
    plugin_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plugins_file: str | None = None,
) -> None:
    """Every provider can be built with its defaults, or with the plugins file's options."""
    for step in (import_plugin, _check_hooks, _register):
        _skip_if_broken(step, _importable(plugin_name))
    monkeypatch.chdir(tmp_path)
    plugin = LoadedPlugin(plugin_name, plugins_file)
    for provider in plugin.providers:
        kind = KINDS[provider.kind]
        if kind.has_auto or kind.choose in ("model", "request"):
            continue  # it needs a model
        built = plugin.build(provider)
        if built is not None and (kind.is_slot or kind.is_watcher):  # it has hooks
            load_host(provider.kind, built).emit(Stopping())


def check_the_import_is_quick(
    plugin_name: str,
    tmp_path_factory: pytest.TempPathFactory,
    report: Report,
) -> None:
    """The import takes less than 50 ms of processor time: heavy imports belong in factories."""
    seconds = _import(_importable(plugin_name), tmp_path_factory).seconds
    report_time(report, "import", seconds)
    assert seconds < MOST_SECONDS, f"the import takes {seconds * 1000:.0f} ms"


def check_the_import_brings_no_heavy_library(
    plugin_name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The import loads no heavy library, because `plugins list` imports every plugin."""
    found = _import(_importable(plugin_name), tmp_path_factory).modules.intersection(_HEAVY)
    assert not found, f"the import brings {', '.join(found)}: import it inside the factory"


@suite
class PackageConformance:
    """The suite for a plugin's package.

    Subclass it as Test..., with a fixture `plugin_name` that returns the entry point's name. The
    plugin must be installed. A fixture `plugins_file` may name a plugins.toml with options.
    """


def _importable(name: str) -> InstalledPlugin:
    """The plugin. Skips the test if it cannot be imported: another test reports that."""
    plugin = find_plugin(name)
    _skip_if_broken(lambda plugin: plugin.entry_point.load(), plugin)
    return plugin


def _skip_if_broken(step: Callable[[InstalledPlugin], object], plugin: InstalledPlugin) -> None:
    """Skip the test if this step fails: another test reports that."""
    try:
        step(plugin)
    except Exception as error:
        pytest.skip(f"{plugin.source} fails earlier: {error}")


def _check_hooks(plugin: InstalledPlugin) -> None:
    register_checked(new_manager(), plugin.entry_point.load(), plugin.source.plugin, plugin.source)


def _register(plugin: InstalledPlugin) -> Registry:
    manager, registry = new_manager(), Registry()
    manager.register(plugin.entry_point.load())
    with registry.accepting(plugin.source):
        manager.hook.register(registry=registry)
    return registry


def _import(plugin: InstalledPlugin, tmp_path_factory: pytest.TempPathFactory) -> FreshImport:
    bytecode = tmp_path_factory.getbasetemp() / "bytecode"
    return _import_cached(plugin.source, plugin.entry_point.value, bytecode, MOST_SECONDS)


_import_cached = cache(import_afresh)
