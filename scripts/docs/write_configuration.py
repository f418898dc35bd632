"""Writes docs/configuration.md from the code: every flag, and every key of plugins.toml.

python scripts/docs/write_configuration.py

tests/docs/test_generated.py compares the file with the code.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenmill.api.cli import main, make_parser
from tokenmill.api.commands.flags.groups import GROUPS
from tokenmill.core.config import EngineConfig
from tokenmill.core.kinds import SLOTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/configuration.md"
DEFAULTS = ROOT / "plugins.toml"

INTRODUCTION = """\
# Configuration

This page is generated from the code: `make docs` writes it. It lists every command-line flag and
every key of `plugins.toml`.

In a program, the options of `LLM` and `AsyncEngine` are the engine flags, written with `_` instead
of `-`: `LLM(max_num_seqs=64)`. Settings that vLLM also has carry vLLM's names.

A *slot* is a part of the engine that a plugin provides: the scheduler, the attention backend, and
so on. The name of a slot's provider comes from the first of these that has one: a flag or
constructor argument, the file of `--plugins-file`, `./plugins.toml`, the packaged default.
"""

PLUGINS_FILE = """\
## plugins.toml

Your own `plugins.toml` contains only the differences from the packaged default, which is at the end
of this page. It may have these tables and keys:

| table | key | meaning |
|---|---|---|
| | `api` | version of the hook API for which the file was written: 1 |
| `[plugins]` | `enable` | plugins to enable, in addition to those of the packaged default |
| `[plugins]` | `disable` | plugins to disable |
| `[plugins]` | `strict` | true: a plugin that fails to load stops the start; false: it is skipped |
| a slot, for example `[scheduler]` | `use` | name of the provider |
| a slot | any other key | an option of the provider |
| `[observer.NAME]`, `[admission.NAME]`, `[logits_processor.NAME]`, `[transform.NAME]`, \
`[route.NAME]` | any key | an option of NAME |
"""

Groups = dict[str, list[argparse.Action]]
"""The flags of a command by the title of their group."""


def page() -> str:
    """The page, as the code is now."""
    commands = dict(all_commands(make_parser()))
    groups = {name: flag_groups(parser) for name, parser in commands.items()}
    engine, server = split(groups["serve"])
    parts = [
        INTRODUCTION,
        "## Engine flags\n\n`--help=GROUP` prints the flags of a group.",
        *group_sections(engine),
        "## Server flags\n\n`tokenmill serve` has these flags and all engine flags. An argument "
        "`MODEL` is the same as `--model`.",
        *group_sections(server),
        "## Sampling flags\n\n`tokenmill generate` and `tokenmill chat` have these flags. Defaults "
        "of the model's generation_config\nreplace those in the table.\n\n"
        + flag_table(groups["generate"]["sampling"]),
        "## Other commands",
        *(command_section(name, groups[name], engine) for name in commands if name != "serve"),
        PLUGINS_FILE,
        "## Slots, providers and their options\n\n" + provider_table(),
        "## The packaged default\n\n```toml\n" + DEFAULTS.read_text(encoding="utf-8") + "```",
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def all_commands(
    parser: argparse.ArgumentParser, name: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command and subcommand that has flags of its own, by its full name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from all_commands(inner, f"{name} {word}".strip())
            return
    yield name, parser


def split(groups: Groups) -> tuple[Groups, Groups]:
    """The engine flags of `serve` and the server's own ones, by group."""
    settings = {field.name for field in dataclasses.fields(EngineConfig)} - {"served_model_name"}
    engine = {name: [a for a in groups[name] if a.dest in settings] for name in GROUPS}
    server = {name: [a for a in groups[name] if a.dest not in settings] for name in GROUPS}
    return engine, server


def group_sections(groups: Groups) -> Iterator[str]:
    for name, flags in groups.items():
        if flags:
            yield f"**{name}**: {GROUPS[name]}\n\n{flag_table(flags)}"


def flag_groups(parser: argparse.ArgumentParser) -> Groups:
    return {
        group.title or "": [a for a in group._group_actions if _is_shown(a)]
        for group in parser._action_groups
    }


def _is_shown(action: argparse.Action) -> bool:
    return bool(action.help) and action.help is not argparse.SUPPRESS and action.dest != "help"


def flag_table(actions: Iterable[argparse.Action]) -> str:
    rows = [f"| {spelling(action)} | {cell(explain(action))} |" for action in actions]
    return "\n".join(("| flag | meaning |", "|---|---|", *rows))


def spelling(action: argparse.Action) -> str:
    """The names of a flag with its value, or the name of an argument."""
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = "" if action.nargs == 0 else f" {action.metavar or choices(action)}"
    return ", ".join(f"`{name}{value}`" for name in action.option_strings)


def choices(action: argparse.Action) -> str:
    return "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()


def explain(action: argparse.Action) -> str:
    """The help text with its default."""
    return (action.help or "") % {"default": action.default}


def command_section(name: str, groups: Groups, engine: Groups) -> str:
    """A command with the flags that are not in a table above."""
    own = [
        a for title, flags in groups.items() if title not in {*GROUPS, "sampling"} for a in flags
    ]
    parts = [f"### tokenmill {name}"]
    if own:
        parts.append(flag_table(own))
    if taken := {action.dest for name in GROUPS for action in groups.get(name, ())}:
        known = [action.dest for flags in engine.values() for action in flags]
        parts.append(engine_sentence(taken, known))
    if not own and not taken:
        parts.append("No flags.")
    return "\n\n".join(parts)


def engine_sentence(taken: set[str], known: list[str]) -> str:
    """The engine flags of a command, or those that it lacks if they are fewer."""
    missing = [name for name in known if name not in taken]
    if not missing:
        return "All engine flags."
    if len(missing) < len(taken):
        return f"All engine flags except {flags(missing)}."
    return f"Of the engine flags: {flags(name for name in known if name in taken)}."


def flags(names: Iterable[str]) -> str:
    return ", ".join(f"`--{name.replace('_', '-')}`" for name in names)


def provider_table() -> str:
    """All providers of tokenmill's own plugins."""
    rows = ["| table | provider | option | default | meaning |", "|---|---|---|---|---|"]
    plugins = run_json("plugins", "list")
    for plugin in plugins:
        if plugin["distribution"] != "tokenmill":
            continue
        for provider in run_json("plugins", "show", plugin["name"])["providers"]:
            rows += provider_rows(provider)
    return "\n".join([*rows[:2], *sorted(rows[2:])])


def provider_rows(provider: dict[str, Any]) -> list[str]:
    kind, name = provider["kind"], provider["name"]
    table = f"[{kind}]" if kind in SLOTS else f"[{kind}.{name}]"
    table = "quant_method" if kind == "weight_format" else table
    names = ", ".join(f"`{n}`" for n in (name, *provider["aliases"]))
    options = provider["options"] or [{"name": None}]
    return [
        f"| `{table}` | {names} | "
        + (f"`{o['name']}` | `{o['default']}` | {cell(o['help'])} |" if o["name"] else "| | |")
        for o in options
    ]


def run_json(*command: str) -> Any:
    """The output of a command, with the packaged default as the only plugins.toml."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        main([*command, "--json", "--plugins-file", str(DEFAULTS)])
    return json.loads(output.getvalue())


def cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
