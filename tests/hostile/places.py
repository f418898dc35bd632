"""Where hostile code may stand: the smallest plugin for each hook and method, which calls `act`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import indent

HEADER = """
import asyncio, ctypes, os, signal, sys, threading, time
from tokenmill.plugin import *
from tokenmill.plugin import hookimpl

TOKENMILL_API = (1, 1)

def act(*given):
    {act}
"""
NAME = "hostile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A hook or method of a plugin."""

    kind: str
    hook: str
    """As in `hook_stats`."""
    code: str
    options: Mapping[str, object] = field(default_factory=dict)
    """Of EngineConfig, with which the engine calls it."""

    def plugin(self, act: str) -> str:
        """The code of a plugin that does something in this place."""
        return HEADER.format(act=act) + self.code


def _hook(kind: str, name: str, arguments: str, decorator: str = "@hookimpl") -> Place:
    code = f"{decorator}\ndef {name}({arguments}):\n    return act({arguments})\n"
    return Place(kind=kind, hook=name, code=code)


def _provider(
    kind: str, hook: str, body: str, *, flag: str | None = None, **options: object
) -> Place:
    """A class that is registered under the name "hostile", and chosen by a flag."""
    code = f"class Provider:\n{indent(body, '    ')}\n\n@hookimpl\ndef register(registry):\n"
    code += f'    registry.offer(kinds.{kind.upper()}, "{NAME}", Provider)\n'
    chosen = {} if flag == "" else {flag or kind: NAME}
    return Place(kind=kind, hook=hook, code=code, options=chosen | options)


SPECULATES = {"speculative_method": "ngram", "num_speculative_tokens": 2}
PLACES: Mapping[str, Place] = {
    "schedule": _provider(
        "scheduler",
        "schedule",
        "@hookimpl\ndef schedule(self, step): return act(step, *step.waiting, *step.running)",
    ),
    "schedule wrapper": Place(
        kind="scheduler",
        hook="schedule",
        code="@hookimpl(wrapper=True)\ndef schedule(step):\n    act(step)\n    return (yield)\n",
    ),
    "key": _provider(
        "scheduling_policy",
        "scheduling_policy",
        "uses_priority = False\ndef key(self, request, now): return act(request)",
        max_num_seqs=1,
    ),
    "preempt": _provider(
        "preemption_mode",
        "preempt",
        'modes = ("recompute",)\n@hookimpl\n'
        "def preempt(self, step, needy, candidates): return act(candidates[0], needy)",
    ),
    "choose": _provider(
        "draft_length",
        "draft_length",
        "def choose(self, requests, limits): return act(requests)\n"
        "def observe(self, step): pass\ndef forget(self, engine_id): pass",
        **SPECULATES,
    ),
    "observe": _provider(
        "draft_length",
        "draft_length",
        "def choose(self, requests, limits): return [2] * len(requests)\n"
        "def observe(self, step): return act(step)\ndef forget(self, engine_id): return act(1)",
        **SPECULATES,
    ),
    "before_admit": _hook("admission", "before_admit", "arrival"),
    "admit": _hook("admission", "admit", "request, load"),
    "admit wrapper": Place(
        kind="admission",
        hook="admit",
        code="@hookimpl(wrapper=True)\ndef admit(request):\n    act(request)\n    return (yield)\n",
    ),
    "on_started": _hook("observer", "on_started", "event"),
    "on_admitted": _hook("observer", "on_admitted", "event"),
    "on_planned": _hook("observer", "on_planned", "event"),
    "on_step": _hook("observer", "on_step", "event"),
    "on_finished": _hook("observer", "on_finished", "event"),
    "on_plugin_failed": _hook("observer", "on_plugin_failed", "event"),
    "render_metrics": _hook("observer", "render_metrics", ""),
    "import": Place(kind="package", hook="import", code="act()"),
    "register": _hook("package", "register", "registry"),
    "register twice": Place(
        kind="package",
        hook="register",
        code="@hookimpl\ndef register(registry):\n"
        '    registry.offer(kinds.SCHEDULER, "chunked", act)\n'
        '    registry.offer(kinds.ROUTER, "random", act)\n',
    ),
    "factory": Place(
        kind="observer",
        hook="factory",
        code=f'@hookimpl\ndef register(registry): registry.offer(kinds.OBSERVER, "{NAME}", act)\n',
    ),
    "lifespan": _hook("observer", "lifespan", "engine"),
    "async hook": Place(
        kind="observer", hook="on_step", code="@hookimpl\nasync def on_step(event): act(event)\n"
    ),
    "unknown hook": _hook("observer", "on_stepp", "event"),
    "unknown argument": _hook("observer", "on_step", "evnt"),
    "method without mark": _provider(
        "scheduler", "schedule", "def schedule(self, step): act(step)"
    ),
}
