"""`tokenmill plugins`: lists, describes and checks plugins."""

from __future__ import annotations

import argparse
from typing import Any

from ....core.contract.plugin_info import PluginDescription
from ....core.host.listing import describe_plugin, discover_plugins
from ..printing import print_json
from .check import run_check
from .listing import print_details, print_plugins


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plugins",
        help="list, describe and check plugins",
        description="List installed plugins and their providers, describe a plugin, or check it. "
        "Works even when a plugin is broken.",
        examples=("tokenmill plugins list", "tokenmill plugins show chunked"),
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    listing = verbs.add_parser(
        "list",
        help="list third-party plugins, and the providers of each slot",
        examples=("tokenmill plugins list", "tokenmill plugins list --verbose"),
    )
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.add_argument(
        "--verbose", action="store_true", help="print a row for each plugin, with its hooks"
    )
    listing.set_defaults(run=_list)
    show = verbs.add_parser(
        "show",
        help="describe one plugin: providers, options with defaults, hooks",
        examples=("tokenmill plugins show chunked",),
    )
    show.add_argument("name", metavar="NAME", help="name of the plugin or of one of its providers")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(run=_show)
    check = verbs.add_parser(
        "check",
        help="run the conformance suites on an installed plugin",
        examples=("tokenmill plugins check my-plugin --verbose",),
    )
    check.add_argument("name", metavar="NAME", help="name of the plugin")
    check.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="a test that takes longer fails (default: 300)",
    )
    check.add_argument("--verbose", action="store_true", help="print a line for each test")
    check.set_defaults(run=_check)
    for verb in (listing, show, check):
        verb.add_argument("--plugins-file", metavar="PATH", help="plugins.toml to use")


def _list(args: argparse.Namespace) -> int:
    infos = discover_plugins(args.plugins_file)
    if args.json:
        print_json(infos)
    elif args.verbose:
        print_details(infos)
    else:
        print_plugins(infos)
    return int(any(info.state == "failed" for info in infos))


def _show(args: argparse.Namespace) -> int:
    found = describe_plugin(args.name, args.plugins_file)
    if args.json:
        print_json(found)
        return 0
    print(
        f"{found.info.name}  ({found.info.distribution} {found.info.version}, {found.info.state})"
    )
    if found.info.error:
        print(f"  {found.info.error}")
        if found.info.traceback:
            print(f"\n{found.info.traceback}")
    if found.doc:
        print("\n" + found.doc)
    _print_providers(found)
    return 0


def _check(args: argparse.Namespace) -> int:
    return run_check(args.name, args.plugins_file, args.time_limit, verbose=args.verbose)


def _print_providers(found: PluginDescription) -> None:
    for provider in found.providers:
        also = f" (also: {', '.join(provider.aliases)})" if provider.aliases else ""
        print(f"\n{provider.kind} {provider.name}{also}, contract: {provider.tier}")
        if provider.doc:
            print("  " + provider.doc.splitlines()[0])
        for option in provider.options:
            default = f" (default {option.default})" if option.configured else ""
            value = f"{option.configured or option.default}{default}"
            print(f"  {option.name}: {option.type} = {value}  {option.help}".rstrip())
        if provider.on_this_machine:
            print("  on this machine:")
            for finding in provider.on_this_machine:
                print(f"    {finding}")
    if found.info.hooks:
        print("\nhooks: " + ", ".join(found.info.hooks))
