"""`tokenmill plugins list`: third-party plugins, then the providers of each slot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ....core.contract.plugin_info import PluginInfo
from ....core.kinds import KINDS
from ..printing import new_table, print_table

OWN = "tokenmill"
"""The distribution of the built-in plugins."""


def print_plugins(infos: Sequence[PluginInfo]) -> None:
    """Print the third-party plugins, one per row, and all providers, one slot per row."""
    infos = _sorted(infos)
    others = [info for info in infos if info.distribution != OWN]
    if others:
        _print_table(
            ("THIRD-PARTY PLUGIN", "STATE", "PROVIDERS (* chosen); HOOKS", "FROM"),
            ((one.name, one.state, _offers(one), _origin(one)) for one in others),
        )
    else:
        print("No third-party plugin is installed.")
    print()
    _print_table(("SLOT", "TIER", "PROVIDERS (* chosen)"), _slots(infos))
    idle = [info.name for info in infos if info.state in ("available", "disabled")]
    if idle:
        print(f"\nnot enabled: {', '.join(idle)}")
    _print_errors(infos)
    print("\nDetails: tokenmill plugins list --verbose, tokenmill plugins show NAME")


def print_details(infos: Sequence[PluginInfo]) -> None:
    """Print all plugins, one per row: state, providers, hooks and distribution."""
    _print_table(
        ("PLUGIN", "STATE", "PROVIDERS (* chosen); HOOKS; FROM"),
        (
            (one.name, one.state, f"{_provides(one) or '-'}; {_hooks(one) or '-'}; {_origin(one)}")
            for one in _sorted(infos)
        ),
    )
    _print_errors(infos)


def _sorted(infos: Iterable[PluginInfo]) -> list[PluginInfo]:
    """Third-party plugins first, then by slot."""
    places = {kind: place for place, kind in enumerate(KINDS)}

    def key(info: PluginInfo) -> tuple[bool, int]:
        kind = info.provides[0].partition(":")[0] if info.provides else ""
        return info.distribution == OWN, places.get(kind, len(places))

    return sorted(infos, key=key)


def _slots(infos: Iterable[PluginInfo]) -> Iterable[tuple[str, str, str]]:
    """Each slot with the tier of its contract and its providers."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for info in infos:
        for provider in info.provides:
            kind, _, name = provider.partition(":")
            found[kind].append(_marked(name, provider, info))
    return ((kind, KINDS[kind].tier, ", ".join(names)) for kind, names in found.items() if names)


def _offers(info: PluginInfo) -> str:
    return "; ".join(filter(None, (_provides(info), _hooks(info)))) or "-"


def _hooks(info: PluginInfo) -> str:
    """The hooks that a plugin implements, without `register`, which nearly every plugin has."""
    return ", ".join(hook for hook in info.hooks if hook != "register")


def _provides(info: PluginInfo) -> str:
    return ", ".join(_marked(provider, provider, info) for provider in info.provides)


def _marked(text: str, provider: str, info: PluginInfo) -> str:
    return f"{text}*" if provider in info.chosen else text


def _origin(info: PluginInfo) -> str:
    return f"{info.distribution} {info.version}"


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = new_table(*columns)
    for row in rows:
        table.add_row(*row)
    print_table(table)


def _print_errors(infos: Iterable[PluginInfo]) -> None:
    for info in infos:
        if info.error:
            print(f"\n{info.name}: {info.error}")
            if info.traceback:
                print(info.traceback)
