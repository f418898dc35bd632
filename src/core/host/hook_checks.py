"""Checks of hook implementations at the start, so that mistakes are found before the first step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType

import pluggy

from ..contract.hookspecs import PROJECT, HookSpecs
from ..contract.plugin_info import Source
from ..errors import PluginError
from ..kinds import HOOKED
from ..wording.suggest import near_and_known

HOOKS = tuple(name for name in vars(HookSpecs) if not name.startswith("_"))
"""All hooks, in the order of the specs."""
SLOT_HOOKS = {hook: kind.name for hook, kind in HOOKED.items() if kind.is_slot}
"""Hooks that exactly one chosen provider implements, with the kind of the provider."""

_HOOKABLE = (FunctionType, MethodType, staticmethod, classmethod)


class _Manager(pluggy.PluginManager):
    """Finds the hooks that pluggy finds, in a third of its time: 10 ms of each engine's start."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """Pluggy's answer, which it is not asked for names that cannot be hooks."""
        if name.startswith("__") and name.endswith("__"):
            return None
        if type(plugin) is ModuleType:
            value = vars(plugin).get(name)
            if not isinstance(value, _HOOKABLE) or not hasattr(value, f"{PROJECT}_impl"):
                return None
        return super().parse_hookimpl_opts(plugin, name)


def new_manager() -> pluggy.PluginManager:
    """A pluggy manager with tokenmill's hooks and no plugins."""
    manager = _Manager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    return manager


def implemented_hooks(manager: pluggy.PluginManager, plugin: object) -> tuple[str, ...]:
    """Names of the hooks that an object, class or module implements, in the order of the specs."""
    found = marked_names(manager, plugin)
    return tuple(hook for hook in HOOKS if hook in found)


def marked_names(manager: pluggy.PluginManager, plugin: object) -> set[str]:
    """Names of all hooks that are marked with @hookimpl. Some may not exist."""
    found = set()
    for name in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is not None:
            found.add(options.get("specname") or name)
    return found


def register_checked(
    manager: pluggy.PluginManager,
    plugin: object,
    name: str,
    source: Source,
    *,
    fills: str | None = None,
) -> None:
    """Check and register the hooks of an object.

    `fills` is the hook of the slot for which the object was chosen, if any. Raises PluginError, and
    registers nothing, for an unknown hook or argument, and for mistakes that pluggy finds only at
    the call or never.
    """
    if inspect.isclass(plugin):
        raise PluginError(f"{source} is the class {plugin.__name__}: name a module or an instance")
    try:
        if plugin in manager.get_plugins():  # asks for its hash
            raise PluginError(f"{source}: {name!r} is the plugin itself; offer another object")
        manager.register(plugin, name)
    except TypeError:
        raise PluginError(
            f"{source}: {name!r} must be hashable: a class with __eq__ needs __hash__, too"
        ) from None
    except (pluggy.PluginValidationError, ValueError) as error:
        raise PluginError(f"{source}: {' '.join(str(error).split())}") from error
    try:
        implementations = _check_known(manager, plugin, source)
        for hook, implementation in implementations:
            _check_one(hook, implementation, source, fills)
        if fills is not None and fills not in [hook for hook, _ in implementations]:
            raise PluginError(f"{source}: mark the method {fills!r} of {name!r} with @hookimpl")
        manager.check_pending()
    except (PluginError, pluggy.PluginValidationError) as error:
        manager.unregister(plugin, name)
        raise PluginError(str(error)) from None


def _check_known(
    manager: pluggy.PluginManager, plugin: object, source: Source
) -> list[tuple[str, pluggy.HookImpl]]:
    callers = manager.get_hookcallers(plugin) or []
    found = [(c.name, i) for c in callers for i in c.get_hookimpls() if i.plugin is plugin]
    for hook, implementation in found:
        if hook not in HOOKS and not implementation.optionalhook:
            near = near_and_known(hook, HOOKS)
            raise PluginError(f"{source} implements the unknown hook {hook!r}{near}")
    if not found:
        raise PluginError(f"{source} implements no hook: is it marked with @hookimpl?")
    return found


def _check_one(
    hook: str, implementation: pluggy.HookImpl, source: Source, fills: str | None
) -> None:
    function = implementation.function
    if implementation.hookwrapper:
        raise PluginError(
            f"{source}: {hook!r} is an old-style wrapper: use @hookimpl(wrapper=True)"
        )
    if implementation.wrapper and hook not in HOOKED:
        raise PluginError(f"{source}: {hook!r} cannot be wrapped, only {', '.join(HOOKED)} can")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise PluginError(f"{source}: {hook!r} is async: hooks are plain functions; see 'lifespan'")
    if _keyword_only(function):
        raise PluginError(f"{source}: {hook!r} has keyword-only arguments: remove the '*'")
    if hook in SLOT_HOOKS and not implementation.wrapper and hook != fills:
        kind = SLOT_HOOKS[hook].upper()
        raise PluginError(
            f"{source} implements {hook!r} without being chosen for it: offer it with "
            f"registry.offer(kinds.{kind}, ...), or make it a wrapper"
        )


def _keyword_only(function: Callable[..., object]) -> bool:
    own = function.__func__ if isinstance(function, MethodType) else function
    is_plain = isinstance(own, FunctionType) and not hasattr(own, "__wrapped__")
    if is_plain and not own.__code__.co_kwonlyargcount:  # a signature takes 20 times the time
        return False
    parameters = inspect.signature(function).parameters.values()
    return any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
