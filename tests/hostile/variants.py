"""Hostile variants of plugins: where each stands, what it does, and what must come of it.

Plugins whose answers are wrong, but neither raise nor break a rule, are in tests/conformance/wrong:
only the conformance kit can find them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .computing import COMPUTING
from .places import PLACES, Place
from .serving import SERVING

ACTS = {
    "raises": "raise ValueError('planted')",
    "exits": "raise SystemExit(3)",
    "cancels": "raise asyncio.CancelledError",
    "closes": "raise GeneratorExit",
    "recurses": "return act()",
    "returns None": "return None",
    "returns text": "return 'text'",
    "returns NaN": "return float('nan')",
    "returns huge": "return (10 ** 400,)",
    "returns an object": "return object()",
    "returns bad bytes": r"return b'\xff\xfe{ 1'",
    "sets an attribute": "given[0].num_tokens = 1",
    "forces an attribute": "object.__setattr__(given[0], 'num_tokens', 1)",
    "prints": "print('x' * 10_000, file=sys.stderr)",
    "starts a thread": "threading.Thread(target=time.sleep, args=(0.01,), daemon=True).start()",
    "eats memory": "bytearray(1 << 60)",
    "is slow": "time.sleep(0.06)",
}
FAULTS = {
    "interrupts": "raise KeyboardInterrupt",
    "leaves": "os._exit(7)",
    "crashes": "ctypes.string_at(0)",
    "hangs": "time.sleep(3600)",
    "hangs and keeps the lock": "ctypes.PyDLL(None).sleep(3600)",
    "stops": "os.kill(os.getpid(), signal.SIGSTOP)",
}
"""They end the engine's process, or make it useless."""
RAISING = ("raises", "exits", "cancels", "closes", "recurses", "eats memory")
FORCING = ("sets an attribute", "forces an attribute")
ANSWERS = tuple(act for act in ACTS if act.startswith("returns"))
QUIET = ("prints", "starts a thread", "is slow")


class Outcome(StrEnum):
    """What comes of a variant. Every one but HARMLESS names the plugin."""

    HARMLESS = "requests are answered, and no failure is counted"
    CONTAINED = "requests are answered, and the failures are counted"
    FAILS = "requests that call it fail, and the failures are counted or logged"
    STOPPED = "the engine stops"
    REFUSED = "the start is refused"
    LOST = "the engine is lost; another one serves"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One hostile plugin."""

    where: str
    act: str
    outcome: Outcome

    @property
    def place(self) -> Place:
        return ALL_PLACES[self.where]

    def __str__(self) -> str:
        return f"{self.where}: {self.act}"


ALL_PLACES: Mapping[str, Place] = {**PLACES, **SERVING, **COMPUTING}
_Outcomes = Mapping[Outcome, Sequence[str]]


def _but(acts: Sequence[str], *left_out: str) -> tuple[str, ...]:
    return tuple(act for act in acts if act not in left_out)


_DECIDES: _Outcomes = {Outcome.CONTAINED: (*RAISING, *FORCING, *ANSWERS, *QUIET)}
_OBSERVES: _Outcomes = {
    Outcome.CONTAINED: (*RAISING, *FORCING),
    Outcome.HARMLESS: (*ANSWERS, *QUIET),
}
_ADMITS: _Outcomes = {
    Outcome.FAILS: (*RAISING, *FORCING, *_but(ANSWERS, "returns None")),
    Outcome.HARMLESS: ("returns None", *QUIET),
}
_STARTS: _Outcomes = {Outcome.REFUSED: RAISING, Outcome.HARMLESS: ("returns None", *QUIET)}
_REFUSES: _Outcomes = {Outcome.REFUSED: ("raises", "returns None")}
_LOADS: _Outcomes = {Outcome.REFUSED: (*_but(RAISING, "recurses"), "returns an object")}
_COMPUTES: _Outcomes = {Outcome.FAILS: (*_but(RAISING, "recurses"), "returns an object")}
OUTCOMES: Mapping[str, _Outcomes] = {
    "schedule": _DECIDES,
    "schedule wrapper": _OBSERVES,
    "key": {
        Outcome.CONTAINED: (*RAISING, *FORCING, "returns None", "returns an object", *QUIET),
        Outcome.HARMLESS: ("returns text", "returns NaN", "returns huge", "returns bad bytes"),
    },
    "preempt": {
        Outcome.CONTAINED: (*RAISING, *FORCING, *_but(ANSWERS, "returns None")),
        Outcome.HARMLESS: ("returns None", *QUIET),
    },
    "choose": _DECIDES,
    "observe": _OBSERVES,
    "before_admit": _ADMITS,
    "admit": _ADMITS,
    "admit wrapper": {
        Outcome.FAILS: (*RAISING, *FORCING),
        Outcome.HARMLESS: (*ANSWERS, *QUIET),
    },
    "on_started": _OBSERVES,
    "on_admitted": _OBSERVES,
    "on_planned": {  # it has an attribute of that name, and no later use
        Outcome.CONTAINED: (*RAISING, "sets an attribute"),
        Outcome.HARMLESS: ("forces an attribute", *ANSWERS, *QUIET),
    },
    "on_step": _OBSERVES,
    "on_finished": _OBSERVES,
    "render_metrics": {
        Outcome.CONTAINED: (*RAISING, *_but(ANSWERS, "returns None")),
        Outcome.HARMLESS: ("returns None", *QUIET),
    },
    "import": {Outcome.REFUSED: RAISING},
    "register": {Outcome.REFUSED: RAISING, Outcome.HARMLESS: (*ANSWERS, *QUIET)},
    "factory": {
        Outcome.REFUSED: (*RAISING, *_but(ANSWERS, "returns None")),
        Outcome.HARMLESS: ("returns None", *QUIET),
    },
    "lifespan": {
        Outcome.REFUSED: (*RAISING, *_but(ANSWERS, "returns None")),
        Outcome.HARMLESS: ("returns None", *QUIET),
    },
    "register twice": _REFUSES,
    "async hook": _REFUSES,
    "unknown hook": _REFUSES,
    "unknown argument": _REFUSES,
    "method without mark": _REFUSES,
    "tool parser": {
        Outcome.CONTAINED: (*RAISING, "returns text", "returns NaN"),
        Outcome.HARMLESS: ("returns None", *QUIET),
    },
    "reasoning parser": {Outcome.CONTAINED: RAISING, Outcome.HARMLESS: ("returns None", *QUIET)},
    "parser reasons": {Outcome.REFUSED: (*RAISING, "returns None")},
    "media reasons": {Outcome.REFUSED: (*RAISING, "returns None")},
    "process": {Outcome.FAILS: (*_but(RAISING, "eats memory"), *ANSWERS)},
    "transform": {Outcome.FAILS: RAISING, Outcome.HARMLESS: ("returns None", *QUIET)},
    "http handler": {
        Outcome.FAILS: (*RAISING, *_but(ANSWERS, "returns None")),
        Outcome.HARMLESS: ("returns None", *QUIET),
    },
    "http stream": {
        Outcome.FAILS: (*RAISING, "returns an object"),
        Outcome.HARMLESS: (*_but(ANSWERS, "returns an object"), *QUIET),
    },
    "http error": {Outcome.FAILS: (*RAISING, *QUIET)},
    "route": {Outcome.CONTAINED: (*RAISING, *ANSWERS, *QUIET)},
    "forget": {Outcome.CONTAINED: RAISING, Outcome.HARMLESS: (*ANSWERS, *QUIET)},
    "attention reasons": _LOADS,
    "attention": {Outcome.FAILS: _but(RAISING, "recurses"), Outcome.HARMLESS: QUIET},
    "attention result": {Outcome.FAILS: ("returns text",)},
    "linear reasons": _LOADS,
    "linear": _LOADS,
    "model reasons": _LOADS,
    "model": _LOADS,
    "weight format": _LOADS,
    "grammar reasons": _LOADS,
    "compile": {Outcome.FAILS: ("raises", "exits", "returns None")},
    "fill": {Outcome.FAILS: ("raises", "exits")},
    "executor": _LOADS,
    "launch": _COMPUTES,
    "result": _COMPUTES,
    "health": {Outcome.STOPPED: ("raises", "exits")},
    "close": {Outcome.HARMLESS: (*RAISING, *ANSWERS)},
    "check": {
        Outcome.FAILS: _but(RAISING, "raises"),  # a ValueError of `check` is its answer
        Outcome.HARMLESS: ("returns None", *QUIET),
    },
    "begin": {Outcome.FAILS: RAISING, Outcome.HARMLESS: ("returns None", *QUIET)},
    "apply": {Outcome.FAILS: RAISING, Outcome.HARMLESS: ("returns None", *QUIET)},
    "propose": _DECIDES,
    "prepare": {Outcome.REFUSED: RAISING},
}
VARIANTS = tuple(
    Variant(where=where, act=act, outcome=outcome)
    for where, outcomes in OUTCOMES.items()
    for outcome, acts in outcomes.items()
    for act in acts
)


def _faults() -> Iterator[Variant]:
    """Each fault in two hooks, and each hook with two faults or more."""
    hooks = ("schedule", "key", "admit", "on_step", "on_finished", "render_metrics")
    for i, act in enumerate(FAULTS):
        for where in (hooks[i], hooks[(i + 1) % len(hooks)]):
            yield Variant(where=where, act=act, outcome=Outcome.LOST)


LOSING = tuple(_faults())
