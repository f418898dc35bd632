"""Policies that an embedding program passes in as plain objects, without a package or a name."""

from __future__ import annotations

import pluggy

from ..contract.hookspecs import hookimpl
from ..contract.registry import Registry, label
from ..errors import PluginError
from ..kinds import KINDS
from .hook_checks import SLOT_HOOKS, implemented_hooks, marked_names


class PolicyObject:
    """A plugin that offers a policy object of the program, under the name of its class."""

    def __init__(self, policy: object, slot: str, name: str) -> None:
        self.slot = slot
        self._policy = policy
        self._name = name

    @hookimpl
    def register(self, registry: Registry) -> None:
        registry.offer(KINDS[self.slot], self._name, lambda: self._policy)


def slot_of(manager: pluggy.PluginManager, plugin: object) -> str | None:
    """The slot that an object fills by itself; None if it observes, wraps or registers.

    Raises PluginError for an object that would fill several slots, or has a part of a policy.
    """
    if isinstance(plugin, type):
        return None  # `register_checked` refuses it, with the advice to pass an instance
    hooks = implemented_hooks(manager, plugin)
    slots = [SLOT_HOOKS[hook] for hook in hooks if _decides(manager, plugin, hook)]
    missing = {slot: kind.lacks(plugin) for slot, kind in KINDS.items() if kind.is_direct}
    slots += [slot for slot, names in missing.items() if not names]
    if "register" in hooks:
        return None
    if len(slots) > 1:
        raise PluginError(
            f"{plugin!r} is {' and '.join(map(label, slots))} at once; pass one object for each"
        )
    if not slots and not marked_names(manager, plugin):
        for slot, names in missing.items():
            if len(names) < len(KINDS[slot].needs):
                raise PluginError(
                    f"{type(plugin).__name__} lacks {', '.join(names)}, which a {label(slot)} needs"
                )
    return slots[0] if slots else None


def _decides(manager: pluggy.PluginManager, plugin: object, hook: str) -> bool:
    options = manager.parse_hookimpl_opts(plugin, hook)
    return hook in SLOT_HOOKS and options is not None and not options["wrapper"]
