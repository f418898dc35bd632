"""Providers by name: plugins offer them, a name in a flag or in plugins.toml chooses one.

A registry lists, checks, says "did you mean" and refuses duplicates, which hooks that answer by
name could not. Names are written with hyphens; underscores are equal on input.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self

from ..config import EngineConfig
from ..errors import CONTAINED, PluginError
from ..suggest import did_you_mean, listed, near_and_known
from .draft_length import DraftLengthPolicy
from .plugin_info import ProviderInfo, Source, normalize
from .policy import (
    PreemptionCandidate,
    Refusal,
    RequestView,
    SchedulingPolicy,
    StepView,
    Victim,
)
from .provider_options import build_options, describe_options, refuse_options
from .speculation import Draft, ProposalBatch

if TYPE_CHECKING:
    from .client import Load

SLOTS = (
    "scheduler",
    "scheduling_policy",
    "preemption_mode",
    "attention_backend",
    "speculative_method",
    "draft_length",
)
"""Kinds of which exactly one provider is chosen."""
KINDS = (*SLOTS, "observer", "admission")
"""All kinds; of the last two, every one that an enabled plugin offers is built."""

REQUIRED_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "scheduler": ("schedule",),
    "scheduling_policy": ("key", "uses_priority"),
    "preemption_mode": ("preempt", "modes"),
    "attention_backend": ("reasons_against", "__call__"),
    "speculative_method": ("propose",),
    "draft_length": ("choose", "observe", "forget"),
    "admission": ("admit",),
}


class Scheduler(Protocol):
    """What a scheduler's factory returns; `schedule` is marked with @hookimpl."""

    def schedule(self, step: StepView) -> object: ...


class PreemptionMode(Protocol):
    """What a preemption mode's factory returns; `preempt` is marked with @hookimpl."""

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that it may answer, of "recompute" and "swap": host memory is set aside for
        swap only if it is among them."""
        ...

    def preempt(
        self, step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
    ) -> Victim | None: ...


class SpeculativeMethod(Protocol):
    """What a speculative method's factory returns; `propose` is marked with @hookimpl.

    One that needs the executor has `prepare(support)`, too: see Speculator in speculation.py.
    """

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]: ...


class Admission(Protocol):
    """What an admission's factory returns; `admit` is marked with @hookimpl."""

    def admit(self, request: RequestView, load: Load) -> Refusal | None: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PluginContext:
    """What the factories of observers and admissions are given."""

    config: EngineConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Provider:
    """One offer: a factory under a name, and where it came from."""

    kind: str
    name: str
    aliases: tuple[str, ...]
    switches: Mapping[str, bool]
    """Flags that are on or off, and the value that selects this provider."""
    factory: Callable[..., object]
    options: type[Any] | None
    source: Source

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def describe(self) -> ProviderInfo:
        return ProviderInfo(
            kind=self.kind,
            name=self.name,
            aliases=self.aliases,
            doc=inspect.getdoc(self.factory) or "",
            options=describe_options(self.options),
        )


class Registry:
    """What the `register` hook is given: one method per kind.

    A factory is called with the options object, if `options` (a dataclass) is declared; those of
    observers and admissions get a PluginContext before it. Import heavy things inside the factory.
    """

    def __init__(self) -> None:
        self._source: Source | None = None
        self._providers: dict[tuple[str, str], Provider] = {}

    @contextmanager
    def accepting(self, source: Source) -> Iterator[Self]:
        """Take offers, in the name of this plugin; outside of such a block they are refused.

        When the block raises, everything that the plugin offered is forgotten.
        """
        self._source = source
        try:
            yield self
        except BaseException:
            self.withdraw(source)
            raise
        finally:
            self._source = None

    def scheduler(
        self,
        name: str,
        factory: Callable[..., Scheduler],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
        switches: Mapping[str, bool] | None = None,
    ) -> None:
        """Offer a scheduler, chosen by --scheduler or [scheduler] use. `switches={"enable_chunked_prefill": True}` says that this flag selects it.

        It runs in the engine's process, on the engine thread.
        """
        self._offer("scheduler", name, factory, options, aliases, switches)

    def scheduling_policy(
        self,
        name: str,
        factory: Callable[..., SchedulingPolicy],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Offer an order of the waiting requests, chosen by --scheduling-policy.

        It runs in the engine's process, on the engine thread.
        """
        self._offer("scheduling_policy", name, factory, options, aliases)

    def preemption_mode(
        self,
        name: str,
        factory: Callable[..., PreemptionMode],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Offer a choice of the request that gives up its KV blocks, by --preemption-mode.

        It runs in the engine's process, on the engine thread.
        """
        self._offer("preemption_mode", name, factory, options, aliases)

    def attention_backend(
        self,
        name: str,
        factory: Callable[..., Any],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Offer an attention backend, chosen by --attention-backend.

        The factory returns the backend's class (see backends/attention/base.py), or anything with
        its `reasons_against` that makes a backend when called with an AttentionSpec. It runs in a worker, on the device thread.
        """
        self._offer("attention_backend", name, factory, options, aliases)

    def speculative_method(
        self,
        name: str,
        factory: Callable[..., SpeculativeMethod],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Offer a method that proposes draft tokens, chosen by --speculative-method.

        `--speculative-model` and the keys of `--speculative-config` fill its options. It runs in a worker, on the device thread.
        """
        self._offer("speculative_method", name, factory, options, aliases)

    def draft_length(
        self,
        name: str,
        factory: Callable[..., DraftLengthPolicy],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
        switches: Mapping[str, bool] | None = None,
    ) -> None:
        """Offer a choice of how many tokens to draft, chosen by --draft-length. `switches={"speculative_adaptive": False}` says that this flag selects it.

        It runs in the engine's process, on the engine thread.
        """
        self._offer("draft_length", name, factory, options, aliases, switches)

    def observer(
        self, name: str, factory: Callable[..., object], *, options: type[Any] | None = None
    ) -> None:
        """Offer an object with hooks, built if its plugin is enabled; a factory may return None.

        It runs in the engine's process, on the engine thread.
        """
        self._offer("observer", name, factory, options, ())

    def admission(
        self,
        name: str,
        factory: Callable[..., Admission | None],
        *,
        options: type[Any] | None = None,
    ) -> None:
        """Offer a check of arriving requests, built if its plugin is enabled; a factory may return
        None.

        It runs in the engine's process, on the engine thread.
        """
        self._offer("admission", name, factory, options, ())

    if not TYPE_CHECKING:  # a type checker finds the misspelling itself

        def __getattr__(self, kind: str) -> Any:
            """Name the kinds for a call like registry.schedular(...). Raises AttributeError."""
            raise AttributeError(f"the registry has no kind {kind!r}{near_and_known(kind, KINDS)}")

    def providers(
        self, kind: str | None = None, *, plugin: str | None = None
    ) -> tuple[Provider, ...]:
        """What was offered, in order; of one kind, or by one plugin."""
        unique = dict.fromkeys(self._providers.values())
        return tuple(
            p for p in unique if kind in (None, p.kind) and plugin in (None, p.source.plugin)
        )

    def find(
        self, kind: str, name: str, *, not_enabled: Sequence[str] = (), left_out: Sequence[str] = ()
    ) -> Provider:
        """The provider of that name or alias. Raises PluginError that lists what is known.

        The message also lists plugins that are `not_enabled`, and why others were `left_out`.
        """
        provider = self._providers.get((kind, normalize(name)))
        if provider is None:
            raise PluginError(self._unknown(kind, name, not_enabled, left_out))
        return provider

    def has(self, kind: str, name: str) -> bool:
        return (kind, normalize(name)) in self._providers

    def build(
        self,
        kind: str,
        name: str,
        options: Mapping[str, object] | None = None,
        *,
        context: PluginContext | None = None,
        where: str | None = None,
    ) -> Any:
        """Call the factory of a provider with its options, validated.

        `where` names the table that the options come from. Raises PluginError with one line.
        """
        provider = self.find(kind, name)
        arguments: list[object] = [] if kind in SLOTS else [context]
        where = where or f"[{kind}]"
        if provider.options is None:
            refuse_options(options or {}, where=where, name=provider.name)
        else:
            arguments.append(
                build_options(provider.options, options or {}, where=where, name=provider.name)
            )
        return _make(provider, arguments)

    def withdraw(self, source: Source) -> None:
        """Forget what a plugin offered, because it failed afterwards."""
        for key in [k for k, p in self._providers.items() if p.source == source]:
            del self._providers[key]

    def _offer(
        self,
        kind: str,
        name: str,
        factory: Callable[..., object],
        options: type[Any] | None,
        aliases: Sequence[str],
        switches: Mapping[str, bool] | None = None,
    ) -> None:
        if self._source is None:
            raise PluginError(
                f"{label(kind)} {name!r} came too late: offer it in the hook 'register'"
            )
        if not callable(factory):
            raise PluginError(f"{label(kind)} {name!r} needs a factory to call, got {factory!r}")
        if options is not None and not (
            isinstance(options, type) and dataclasses.is_dataclass(options)
        ):
            raise PluginError(
                f"options of {label(kind)} {name!r} must be a dataclass, got {options!r}"
            )
        names = [normalize(n) for n in (name, *aliases)]
        provider = Provider(
            kind=kind,
            name=names[0],
            aliases=tuple(names[1:]),
            switches=switches or {},
            factory=factory,
            options=options,
            source=self._source,
        )
        for n in names:
            self._refuse_duplicate(kind, n)
        self._providers.update({(kind, n): provider for n in names})

    def _refuse_duplicate(self, kind: str, name: str) -> None:
        other = self._providers.get((kind, name))
        if other is not None:
            raise PluginError(
                f"{label(kind)} {name!r} is provided by both {other.source} and {self._source}; "
                "disable one in plugins.toml"
            )

    def _unknown(
        self, kind: str, name: str, not_enabled: Sequence[str], left_out: Sequence[str]
    ) -> str:
        known = sorted(n for k, n in self._providers if k == kind)
        near = did_you_mean(normalize(name), [*known, *not_enabled]) or "."
        text = f"no {label(kind)} named {name!r}{near} Known: {listed(known) or 'none'}."
        if not_enabled:
            text += f" Installed but not enabled: {listed(not_enabled)}."
            text += (
                " What a plugin offers under another name than its own needs `[plugins] enable`."
            )
        if left_out:
            text += f" Left out: {'; '.join(left_out)}."
        return text


def label(kind: str) -> str:
    """A kind, as messages write it."""
    return kind.replace("_", " ")


def _make(provider: Provider, arguments: Sequence[object]) -> object:
    what = f"{label(provider.kind)} {provider.name!r} of {provider.source}"
    try:
        built = provider.factory(*arguments)
    except CONTAINED as error:
        raise PluginError(f"{what} could not be built: {type(error).__name__}: {error}") from error
    if built is None and provider.kind not in SLOTS:
        return None
    missing = [a for a in REQUIRED_ATTRIBUTES.get(provider.kind, ()) if not hasattr(built, a)]
    if missing:
        raise PluginError(f"{what} lacks {' and '.join(missing)}: its factory returned {built!r}")
    return built
