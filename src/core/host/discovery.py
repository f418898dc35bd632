"""Finds installed plugins by their entry points, and imports them one at a time.

pluggy's own loader is not used. It imports all installed plugins, stops at the first import error,
and silently skips a second distribution with the same name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import EntryPoint, distributions

from ..contract.hookspecs import HOOK_API
from ..contract.plugin_info import Source, normalize
from ..contract.start_calls import START_CALLS
from ..errors import CONTAINED, PluginError, describe
from ..log import get_logger

GROUP = "tokenmill.plugins"
_METADATA = (".dist-info", ".egg-info")
OWN_DISTRIBUTION = "tokenmill"
_log = get_logger("plugins")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPlugin:
    """An installed plugin that is not imported: an entry point of the group."""

    source: Source
    entry_point: EntryPoint
    rivals: tuple[Source, ...] = ()
    """Other distributions that claim the same name. A plugin with rivals cannot be enabled."""

    @property
    def conflict(self) -> str | None:
        """The error message if several distributions claim the name, otherwise None."""
        if not self.rivals:
            return None
        claimed_by = " and ".join(
            f"{s.distribution} {s.version}" for s in (self.source, *self.rivals)
        )
        return (
            f"the plugin name {self.source.plugin!r} is claimed by several distributions: "
            f"{claimed_by}; uninstall all but one"
        )


def find_installed() -> Mapping[str, InstalledPlugin]:
    """Every installed plugin, by name. tokenmill's own come first; then they are sorted by name.

    Packages are read again only if a package was installed or removed in a folder of sys.path.
    """
    return _find_installed(tuple((folder, _packages(folder)) for folder in sys.path))


@lru_cache(maxsize=1)
def _find_installed(
    folders: tuple[tuple[str, frozenset[tuple[str, int]]], ...],
) -> Mapping[str, InstalledPlugin]:
    found: dict[str, InstalledPlugin] = {}
    for source, entry_point in sorted(_entry_points(), key=lambda pair: _order(pair[0])):
        first = found.get(source.plugin)
        if first is None:
            found[source.plugin] = InstalledPlugin(source=source, entry_point=entry_point)
        else:
            found[source.plugin] = replace(first, rivals=(*first.rivals, source))
    return found


def import_plugin(plugin: InstalledPlugin) -> object:
    """Import a plugin; returns the module or object that its entry point names.

    Raises PluginError, whose message is one line with plugin, distribution and reason.
    """
    source = plugin.source
    if plugin.conflict:
        raise PluginError(plugin.conflict)
    try:
        loaded: object = START_CALLS.call("importing", source, plugin.entry_point.load)
    except CONTAINED as error:
        raise PluginError(f"{source} failed to load: {describe(error)}") from error
    check_api(loaded, source, module=sys.modules.get(plugin.entry_point.module))
    return loaded


def check_api(
    plugin: object, source: Source, *, module: object = None, required: bool = True
) -> None:
    """Raise PluginError unless TOKENMILL_API, of the plugin or its module, includes HOOK_API."""
    declared = getattr(plugin, "TOKENMILL_API", getattr(module, "TOKENMILL_API", None))
    if declared is None:
        if not required:
            return
        raise PluginError(
            f"{source} does not say which hook API it supports: "
            f"declare TOKENMILL_API = ({HOOK_API}, {HOOK_API}), the lowest and the highest version"
        )
    try:
        lowest, highest = map(int, declared)
    except (TypeError, ValueError):
        raise PluginError(
            f"{source}: TOKENMILL_API must be two numbers (lowest, highest), got {declared!r}"
        ) from None
    if not lowest <= HOOK_API <= highest:
        raise PluginError(
            f"{source} needs hook API {lowest}..{highest}; this engine has {HOOK_API}"
        )


def check_own_installation(installed: Iterable[InstalledPlugin], wanted: Iterable[str]) -> None:
    """Raise PluginError if built-in plugins that the packaged settings enable are not installed.

    This happens after an update without a new installation, and in a checkout that was never
    installed.
    """
    own = {p.source.plugin for p in installed if p.source.distribution == OWN_DISTRIBUTION}
    missing = [name for name in wanted if name not in own]
    if missing:
        raise PluginError(
            f"tokenmill's own plugins are not installed: {', '.join(missing)}. The installation is "
            "out of date: run `make install` or `pip install -e .` in the checkout, or install the "
            "wheel again"
        )


def _entry_points() -> Iterator[tuple[Source, EntryPoint]]:
    seen: set[str] = set()
    for distribution in distributions():
        try:
            found = list(distribution.entry_points.select(group=GROUP))
            if not found:
                continue  # reading the metadata of all installed packages would take long
            name, version = distribution.metadata["Name"], distribution.version
        except Exception as error:  # one broken installation must not hide all others
            _log.warning(
                "distribution_unreadable", distribution=str(distribution), error=repr(error)
            )
            continue
        if normalize(name.lower()) in seen:
            continue  # Python imports the first one on sys.path
        seen.add(normalize(name.lower()))
        for entry_point in found:
            plugin = normalize(entry_point.name)
            yield Source(plugin=plugin, distribution=name, version=version), entry_point


def _packages(folder: str) -> frozenset[tuple[str, int]]:
    """The packages of a folder of sys.path, each with the time of its last change.

    The folder's own time is not enough: the current directory changes with each file in it.
    """
    try:
        with os.scandir(folder or ".") as entries:
            return frozenset(
                (entry.name, entry.stat().st_mtime_ns)
                for entry in entries
                if entry.name.endswith(_METADATA)
            )
    except NotADirectoryError:  # a zip file
        return frozenset([("", os.stat(folder).st_mtime_ns)])
    except OSError:
        return frozenset()


def _order(source: Source) -> tuple[bool, str, str]:
    return source.distribution != OWN_DISTRIBUTION, source.plugin, source.distribution
