"""Loads an installed plugin on its own, and lists the parts that the suites can test."""

from __future__ import annotations

import inspect
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from pathlib import Path, PurePath

from ...core.config import EngineConfig
from ...core.contract.plugin_info import normalize
from ...core.contract.registry import PluginContext, Provider
from ...core.errors import PluginError
from ...core.host.discovery import InstalledPlugin, find_installed
from ...core.host.hook_checks import implemented_hooks, new_manager
from ...core.host.plugin_set import PluginSet
from ...core.host.plugins_file import PluginSettings, Table, read_settings
from ...core.kinds import HOOKED, OBSERVER, SLOTS, SPECULATIVE_METHOD
from ...core.members import PROPOSES
from ...core.wording.suggest import near_and_known
from .hosting import SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One provider or hook object of a plugin, and the kind whose suite it must pass."""

    kind: str
    name: str
    make: Callable[[], object]


def find_plugin(name: str) -> InstalledPlugin:
    """The installed plugin of that name. Raises PluginError, which lists known names."""
    installed = find_installed()
    plugin = installed.get(normalize(name))
    if plugin is None:
        near = near_and_known(normalize(name), installed)
        raise PluginError(f"no plugin named {name!r}{near}")
    return plugin


class LoadedPlugin:
    """A plugin, loaded together with the engine's own plugins.

    Its options come from `plugins_file`; without a file it gets the defaults that it declares.
    Raises PluginError if an engine would not load it.
    """

    def __init__(self, name: str, plugins_file: str | None = None) -> None:
        self.name = find_plugin(name).source.plugin
        settings = read_settings(plugins_file or SETTINGS)
        enable = tuple(dict.fromkeys((*settings.builtin, self.name)))
        self._settings = replace(settings, enable=enable, disable=())
        self._plugins = PluginSet(self._settings)
        self._folder = Path(tempfile.mkdtemp(prefix="tokenmill-check-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._plugins.load_enabled()
        if self.name in self._plugins.failed:
            raise PluginError(self._plugins.failed[self.name].message)

    @property
    def plugin(self) -> object:
        """The module or object that the entry point names."""
        return self._plugins.loaded[self.name].objects[0]

    @property
    def providers(self) -> tuple[Provider, ...]:
        return self._plugins.registry.providers(plugin=self.name)

    def build(self, provider: Provider) -> object:
        """Build a provider by its factory; None if the factory decides not to take part.

        Observers and admissions get paths in a temporary folder, whatever their options are.
        Raises PluginError with one line.
        """
        options = _options(self._settings, provider)
        if provider.kind not in SLOTS and provider.options is not None:
            options = sandboxed(provider.options, options, self._folder)
        return self._plugins.registry.build(
            provider.kind,
            provider.name,
            options,
            context=PluginContext(config=EngineConfig()),
        )

    def subjects(self) -> list[Subject]:
        """All parts that the suites can test: the providers, and the plugin's own hooks.

        Nothing is built here. The kinds come from the hooks of a provider's class.
        """
        found = []
        make: Callable[[], object]
        for provider in self.providers:
            if not PROPOSES.of(provider.factory):
                continue  # the engine never calls it
            kinds = {provider.kind}
            if inspect.isclass(provider.factory):
                kinds |= _kinds(provider.factory)
            make = partial(self.build, provider)
            found += [Subject(kind=k, name=provider.name, make=make) for k in sorted(kinds)]
        make = partial(BareHooks, self.plugin)
        found += [Subject(kind=k, name=self.name, make=make) for k in sorted(_kinds(self.plugin))]
        return found


class BareHooks:
    """The hooks of a plugin itself, without its providers."""

    def __init__(self, plugin: object) -> None:
        manager = new_manager()
        for name in dir(plugin):
            options = manager.parse_hookimpl_opts(plugin, name)
            if options is not None and "register" not in (name, options["specname"]):
                setattr(self, name, getattr(plugin, name))


def _kinds(plugin: object) -> set[str]:
    hooks = set(implemented_hooks(new_manager(), plugin)) - {"register"}
    return {HOOKED.get(hook, OBSERVER).name for hook in hooks}


def _options(settings: PluginSettings, provider: Provider) -> Mapping[str, object]:
    """The plugins file's options for this provider. Options for another provider are ignored."""
    if provider.kind not in SLOTS:
        named = settings.named.get((provider.kind, provider.name))
        return named.options if named else {}
    slot = settings.slots.get(provider.kind)
    names = (provider.name, *provider.aliases)
    options = slot.options if slot and slot.use and normalize(slot.use) in names else {}
    return {**_simulated_model(provider), **options}


def _simulated_model(provider: Provider) -> Table:
    """The `model` option for a speculative method that has one; the suite simulates the model."""
    is_needed = provider.kind == SPECULATIVE_METHOD.name and any(
        option.name == "model" for option in provider.describe().options
    )
    return {"model": "simulated"} if is_needed else {}


def sandboxed(options: type, given: Mapping[str, object], folder: Path) -> dict[str, object]:
    """The given options with every path moved into `folder`, default values included.

    So a check does not write to them. An existing file is copied, so that it can be read. `options`
    is the provider's dataclass.
    """
    values = {f.name: f.default for f in fields(options) if f.default is not MISSING}
    values |= {key.replace("-", "_"): value for key, value in given.items()}
    moved = {key: _move(value, folder) for key, value in values.items() if _is_path(value)}
    names = {key.replace("-", "_"): key for key in given}
    return {**given, **{names.get(key, key): value for key, value in moved.items()}}


def _is_path(value: object) -> bool:
    """Whether a value is a path with a folder in it.

    A file name without a folder needs no move: every check runs in an empty folder.
    """
    if isinstance(value, PurePath):
        return True
    return isinstance(value, str) and "://" not in value and (value[:1] == "~" or "/" in value)


def _move(value: object, folder: Path) -> str:
    path = Path(str(value)).expanduser()
    parts = [part for part in path.parts if part not in (path.anchor, "..")]
    target = folder.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file():
        shutil.copyfile(path, target)
    elif path.is_dir():
        target.mkdir(exist_ok=True)
    return str(target)
