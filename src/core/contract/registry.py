"""The registry: plugins offer providers by name, and a flag or plugins.toml chooses one.

A registry can list and check offers, suggest similar names and refuse duplicates. A hook that
returns a provider for a name could not. Names are written with hyphens; on input underscores are
equal to hyphens.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self

from ..config import EngineConfig
from ..errors import CONTAINED, PluginError, describe
from ..suggest import did_you_mean, listed, near_and_known
from .draft_length import DraftLengthPolicy
from .metrics import PluginMetrics
from .parsing.answer_parsers import ReasoningParser, ToolCallParser
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
from .routing import Router
from .speculation import Draft, ProposalBatch
from .start_calls import START_CALLS

if TYPE_CHECKING:
    from .client import Load

SLOTS = (
    "scheduler",
    "scheduling_policy",
    "preemption_mode",
    "distributed_executor_backend",
    "attention_backend",
    "linear_backend",
    "model_impl",
    "grammar_backend",
    "speculative_method",
    "draft_length",
    "tool_call_parser",
    "reasoning_parser",
    "router",
)
"""Kinds with exactly one chosen provider."""
PARSERS = ("tool_call_parser", "reasoning_parser")
"""Slots whose providers the API builds, not the engine."""
COMPUTING = (
    "distributed_executor_backend",
    "attention_backend",
    "linear_backend",
    "model_impl",
    "grammar_backend",
    *PARSERS,
)
"""Slots in which "auto" means the first provider that has no `reasons_against` the model."""
WORKER_KINDS = (
    "attention_backend",
    "linear_backend",
    "model_impl",
    "grammar_backend",
    "speculative_method",
    "weight_format",
    "logits_processor",
)
"""Kinds whose providers are used where steps are computed."""
WATCHERS = ("observer", "admission")
"""Kinds of which every provider of an enabled plugin is built, with a PluginContext."""
KINDS = (*SLOTS, *WATCHERS, "weight_format", "logits_processor")
"""All kinds. A model's files name the weight format that they need, and a request's arguments the
logits processors that it uses."""

REQUIRED_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "scheduler": ("schedule",),
    "scheduling_policy": ("key", "uses_priority"),
    "preemption_mode": ("preempt", "modes"),
    "distributed_executor_backend": ("reasons_against", "__call__"),
    "attention_backend": ("reasons_against", "__call__"),
    "linear_backend": ("reasons_against", "keeps", "__call__"),
    "model_impl": ("reasons_against", "__call__"),
    "grammar_backend": ("reasons_against", "__call__"),
    "speculative_method": ("propose",),
    "draft_length": ("choose", "observe", "forget"),
    "tool_call_parser": ("reasons_against", "parse", "needs_special_tokens", "call_syntax"),
    "reasoning_parser": ("reasons_against", "parse", "needs_special_tokens", "marks"),
    "router": ("route", "forget"),
    "admission": ("admit",),
    "weight_format": ("__call__",),
    "logits_processor": (
        "arguments",
        "example",
        "allows_drafts",
        "always",
        "check",
        "reasons_against",
        "__call__",
    ),
}


class Scheduler(Protocol):
    """Divides a step among requests. A factory returns it; mark `schedule` with @hookimpl."""

    def schedule(self, step: StepView) -> object: ...


class PreemptionMode(Protocol):
    """Chooses which request to preempt. A factory returns it; mark `preempt` with @hookimpl."""

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that `preempt` may answer: "recompute", "swap" or both.

        The engine reserves host memory for swapped blocks only if "swap" is among them.
        """
        ...

    def preempt(
        self, step: StepView, needy: RequestView, candidates: tuple[PreemptionCandidate, ...]
    ) -> Victim | None: ...


class SpeculativeMethod(Protocol):
    """Proposes draft tokens. A factory returns it; mark `propose` with @hookimpl.

    A method that needs the executor also has `prepare(support)`; see Speculator in speculation.py.
    """

    def propose(self, batch: ProposalBatch) -> Sequence[Draft]: ...


class Admission(Protocol):
    """Admits or refuses arriving requests. A factory returns it; mark `admit` with @hookimpl."""

    def admit(self, request: RequestView, load: Load) -> Refusal | None: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PluginContext:
    """First argument of the factories of observers and admissions."""

    config: EngineConfig
    metrics: PluginMetrics = dataclasses.field(default_factory=PluginMetrics)
    """Makes counters, gauges and histograms that GET /metrics shows."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Provider:
    """A named factory that a plugin offers."""

    kind: str
    name: str
    aliases: tuple[str, ...]
    switches: Mapping[str, bool]
    """By flag that is on or off: the value that selects this provider."""
    factory: Callable[..., object]
    options: type[Any] | None
    source: Source

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def describe(self) -> ProviderInfo:
        """The provider with its options, for listings; its text is the factory's docstring."""
        return ProviderInfo(
            kind=self.kind,
            name=self.name,
            aliases=self.aliases,
            doc=inspect.getdoc(self.factory) or "",
            options=describe_options(self.options),
        )


class Registry:
    """The argument of the `register` hook, with one method per kind of provider.

    If an offer declares `options` (a dataclass), its factory is called with an instance of that
    class. The factories of observers and admissions get a PluginContext as their first argument.
    Import heavy modules inside the factory.
    """

    def __init__(self) -> None:
        self._source: Source | None = None
        self._providers: dict[tuple[str, str], Provider] = {}

    @contextmanager
    def accepting(self, source: Source) -> Iterator[Self]:
        """Accept offers of this plugin inside a `with` block; elsewhere they are refused.

        If the block raises, all offers of the plugin are withdrawn.
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
        """Offer a scheduler, chosen by --scheduler or [scheduler] use.

        `switches={"enable_chunked_prefill": True}` means that this flag, when it is on, selects it.
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
        """Offer an order for waiting requests, chosen by --scheduling-policy.

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
        """Offer a rule for which request gives up its KV blocks, chosen by --preemption-mode.

        It runs in the engine's process, on the engine thread.
        """
        self._offer("preemption_mode", name, factory, options, aliases)

    def distributed_executor_backend(
        self,
        name: str,
        factory: Callable[..., Any],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Offer an executor, which decides where steps are computed. It is chosen by
        --distributed-executor-backend.

        The factory returns the executor's class (see ExecutorProvider in
        backends/execution/base.py). It runs in the engine's process, on the device thread.
        """
        self._offer("distributed_executor_backend", name, factory, options, aliases)

    def attention_backend(
        self,
        name: str,
        factory: Callable[..., Any],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Offer an attention backend, chosen by --attention-backend.

        The factory returns the backend's class (see backends/attention/base.py), or any object that
        has its `reasons_against` and makes a backend when called with an AttentionSpec. It runs in
        a worker, on the device thread.
        """
        self._offer("attention_backend", name, factory, options, aliases)

    def linear_backend(
        self,
        name: str,
        factory: Callable[..., Any],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Offer a linear backend, which computes matrix products, chosen by --linear-backend.

        The factory returns the backend's class (see backends/linear/base.py). It runs in a worker,
        on the device thread.
        """
        self._offer("linear_backend", name, factory, options, aliases)

    def model_impl(
        self,
        name: str,
        factory: Callable[..., Any],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Offer an implementation of models, chosen by --model-impl.

        The factory returns the implementation's class (see ModelImpl in backends/models/base.py),
        which decides from config.json whether it can run a model. It runs in a worker, on
        the device thread.
        """
        self._offer("model_impl", name, factory, options, aliases)

    def weight_format(
        self, name: str, factory: Callable[..., Any], *, aliases: Sequence[str] = ()
    ) -> None:
        """Offer a way in which the weights of Hugging Face directories are quantized.

        `name` is the `quant_method` of `quantization_config` in config.json. The factory returns
        the reader of these settings: a ReadMethod of backends/weights/quantization/methods.py. It
        runs in a worker, on the device thread.
        """
        self._offer("weight_format", name, factory, None, aliases)

    def grammar_backend(
        self,
        name: str,
        factory: Callable[..., Any],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Offer a grammar backend, which finds the tokens that may come next in a constrained
        answer, chosen by --grammar-backend.

        The factory is a function of a module, and returns the backend's class (see
        backends/grammar/base.py). It runs in a worker, on the device thread. Another one tries
        the grammars of arriving requests, in a process of its own.
        """
        self._offer("grammar_backend", name, factory, options, aliases)

    def speculative_method(
        self,
        name: str,
        factory: Callable[..., SpeculativeMethod],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
        proposes: bool = True,
    ) -> None:
        """Offer a method that proposes draft tokens, chosen by --speculative-method.

        A method with `proposes=False` never proposes drafts, and is not called.
        `--speculative-model` and the keys of `--speculative-config` fill its options. It runs in a
        worker, on the device thread.
        """
        self._offer("speculative_method", name, factory, options, aliases, {"proposes": proposes})

    def draft_length(
        self,
        name: str,
        factory: Callable[..., DraftLengthPolicy],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
        switches: Mapping[str, bool] | None = None,
    ) -> None:
        """Offer a rule for how many tokens to draft, chosen by --draft-length.

        `switches={"speculative_adaptive": False}` means that this flag, when it is off, selects it.
        It runs in the engine's process, on the engine thread.
        """
        self._offer("draft_length", name, factory, options, aliases, switches)

    def tool_call_parser(
        self,
        name: str,
        factory: Callable[..., ToolCallParser],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Offer a parser that finds tool calls in answers, chosen by --tool-call-parser.

        It runs in the process of the API, on its event loop.
        """
        self._offer("tool_call_parser", name, factory, options, aliases)

    def reasoning_parser(
        self,
        name: str,
        factory: Callable[..., ReasoningParser],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Offer a parser that separates reasoning from content, chosen by --reasoning-parser.

        It runs in the process of the API, on its event loop.
        """
        self._offer("reasoning_parser", name, factory, options, aliases)

    def router(
        self,
        name: str,
        factory: Callable[..., Router],
        *,
        options: type[Any] | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        """Offer a router, which chooses the replica of each request. It is chosen by --router.

        It runs in the process of the API, on its event loop. It is used only with
        --data-parallel-size above 1.
        """
        self._offer("router", name, factory, options, aliases)

    def observer(
        self, name: str, factory: Callable[..., object], *, options: type[Any] | None = None
    ) -> None:
        """Offer an object with hooks, which is built if its plugin is enabled.

        The factory may return None to stay inactive. The object runs in the engine's process, on
        the engine thread.
        """
        self._offer("observer", name, factory, options, ())

    def admission(
        self,
        name: str,
        factory: Callable[..., Admission | None],
        *,
        options: type[Any] | None = None,
    ) -> None:
        """Offer a check of arriving requests, which is built if its plugin is enabled.

        The factory may return None to stay inactive. The check runs in the engine's process, on the
        engine thread.
        """
        self._offer("admission", name, factory, options, ())

    def logits_processor(
        self, name: str, factory: Callable[..., Any], *, options: type[Any] | None = None
    ) -> None:
        """Offer a logits processor, which requests use by naming its arguments in `extra_args`.

        The factory returns the processor's class (see LogitsProcessor in
        backends/sampling/processing/base.py). It is used if its plugin is enabled: the class by
        the engine, an instance in a worker, on the device thread.
        """
        self._offer("logits_processor", name, factory, options, ())

    if not TYPE_CHECKING:  # a type checker finds the misspelling itself

        def __getattr__(self, kind: str) -> Any:
            """Raise AttributeError that lists the kinds, for a misspelling like `schedular`."""
            raise AttributeError(f"the registry has no kind {kind!r}{near_and_known(kind, KINDS)}")

    def providers(
        self, kind: str | None = None, *, plugin: str | None = None
    ) -> tuple[Provider, ...]:
        """Offered providers, in order; only of one kind or of one plugin, if given."""
        unique = dict.fromkeys(self._providers.values())
        return tuple(
            p for p in unique if kind in (None, p.kind) and plugin in (None, p.source.plugin)
        )

    def find(
        self, kind: str, name: str, *, not_enabled: Sequence[str] = (), left_out: Sequence[str] = ()
    ) -> Provider:
        """The provider with this name or alias. Raises PluginError that lists the known names.

        The message also lists plugins that are `not_enabled`, and the errors of plugins that were
        `left_out`.
        """
        provider = self._providers.get((kind, normalize(name)))
        if provider is None:
            raise PluginError(self._unknown(kind, name, not_enabled, left_out))
        return provider

    def has(self, kind: str, name: str) -> bool:
        """Whether a provider of this kind has this name or alias."""
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
        """Validate the options of a provider and call its factory.

        `where` names the table that the options come from. Raises PluginError, whose message is one
        line, for invalid options and for a factory that fails.
        """
        provider = self.find(kind, name)
        arguments: list[object] = [context] if kind in WATCHERS else []
        where = where or f"[{kind}]"
        if provider.options is None:
            refuse_options(options or {}, where=where, name=provider.name)
        else:
            arguments.append(
                build_options(provider.options, options or {}, where=where, name=provider.name)
            )
        return _make(provider, arguments)

    def withdraw(self, source: Source) -> None:
        """Remove all offers of a plugin that failed after it registered."""
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
            text += " A provider with another name than its plugin needs `[plugins] enable`."
        if left_out:
            text += f" Left out: {'; '.join(left_out)}."
        return text


def label(kind: str) -> str:
    """The name of a kind in messages."""
    return kind.replace("_", " ")


def _make(provider: Provider, arguments: Sequence[object]) -> object:
    name = f"{label(provider.kind)} {provider.name!r} of"
    what = f"{name} {provider.source}"
    try:
        built = START_CALLS.call(f"building {name}", provider.source, provider.factory, *arguments)
    except CONTAINED as error:
        raise PluginError(f"{what} could not be built: {describe(error)}") from error
    if built is None and provider.kind in WATCHERS:
        return None
    missing = [a for a in REQUIRED_ATTRIBUTES.get(provider.kind, ()) if not hasattr(built, a)]
    if missing:
        raise PluginError(f"{what} lacks {' and '.join(missing)}: its factory returned {built!r}")
    return built
